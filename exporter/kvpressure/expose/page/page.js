"use strict";
// Puts what the server says has changed in place of what is shown. Everything is made by the server as plain data:
// a text, or [name of an element, {attributes}, [children]]. No text is ever read as HTML.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const QUIET = 3500; // milliseconds without an event after which the connection counts as lost
  const DEAD = 9000; // and after which another one is made
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");
  let source = null;
  let heard = 0; // when the last event came, or the connection was asked for
  let moment = ""; // of the values that are shown

  const build = (node) => {
    if (typeof node === "string") return document.createTextNode(node);
    const [name, attributes, children] = node;
    const made = name === "svg" || name === "path" ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.map(build));
    return made;
  };

  // Changes as little as it can, so that what is focused, selected or read aloud stays.
  const patch = (shown, node) => {
    if (typeof node === "string" && shown.nodeType === Node.TEXT_NODE) {
      if (shown.data !== node) shown.data = node;
      return;
    }
    if (typeof node === "string" || shown.localName !== node[0]) {
      shown.replaceWith(build(node));
      return;
    }
    const [, attributes, children] = node;
    for (const key of shown.getAttributeNames()) {
      if (!(key in attributes) && key !== "open") shown.removeAttribute(key);
    }
    for (const [key, value] of Object.entries(attributes)) {
      // Whether something is folded is the reader's to say.
      if (key !== "open" && shown.getAttribute(key) !== value) shown.setAttribute(key, value);
    }
    children.forEach((child, number) => {
      if (number < shown.childNodes.length) patch(shown.childNodes[number], child);
      else shown.append(build(child));
    });
    while (shown.childNodes.length > children.length) shown.lastChild.remove();
  };

  const take = (event) => {
    const { t, title, changes } = JSON.parse(event.data);
    for (const [way, node] of changes) patch(way.reduce((at, number) => at.childNodes[number], main), node);
    heard = Date.now();
    moment = new Date(t * 1000).toLocaleTimeString();
    document.title = title;
    live.textContent = `Live · ${moment}`;
    tell("");
  };

  const tell = (text) => {
    if (lost.textContent !== text) lost.textContent = text;
    document.body.classList.toggle("old", text !== "");
  };

  const listen = () => {
    if (source) source.close();
    heard = Date.now();
    source = new EventSource("./api/v1/events");
    source.onmessage = (event) => {
      try {
        take(event);
      } catch {
        listen(); // what is shown is not what the server thinks: ask for all of it
      }
    };
  };

  setInterval(() => {
    if (document.hidden) return;
    const silent = Date.now() - heard;
    if (silent > QUIET) {
      tell(moment ? `Connection lost. Values of ${moment}.` : "No connection for updates.");
      live.textContent = "Not live";
    }
    // The browser tries again by itself, unless it was refused or the connection hangs.
    if (silent > DEAD || (silent > QUIET && source.readyState === EventSource.CLOSED)) listen();
  }, 1000);

  // Nobody looks: leave the place to others, and claim nothing in the title.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      listen();
    } else if (source) {
      source.close();
      document.title = "kvpressure";
    }
  });
  if (!document.hidden) listen();
})();
