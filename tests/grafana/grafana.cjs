// Grafana's own code, as far as it is on npm, without a browser. The packages lie in the folder that GRAFANA_MODULES names.
"use strict";
const { createRequire } = require("node:module");
const path = require("node:path");

const load = createRequire(path.join(process.env.GRAFANA_MODULES, "package.json"));
const { JSDOM } = load("jsdom");
const { window } = new JSDOM("<!doctype html><canvas></canvas>", { url: "http://localhost/", pretendToBeVisual: true });

for (const name of ["window", "document", "HTMLElement", "Element", "Node", "DOMParser", "getComputedStyle"]) {
  globalThis[name] = name === "window" ? window : window[name];
}
Object.defineProperty(globalThis, "navigator", { value: window.navigator, configurable: true });
window.matchMedia = () => ({ matches: false, addListener() {}, removeListener() {}, addEventListener() {} });
globalThis.localStorage = window.localStorage;

module.exports = load("@grafana/data");
