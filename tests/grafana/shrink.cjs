// Rewrites a PNG with a palette of 128 colours: enough for charts, and a third of the size.
"use strict";
const { createRequire } = require("node:module");
const fs = require("node:fs");
const path = require("node:path");

const UPNG = createRequire(path.join(process.env.GRAFANA_MODULES, "package.json"))("upng-js");
const [file] = process.argv.slice(2);
const bytes = fs.readFileSync(file);
const picture = UPNG.decode(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
fs.writeFileSync(file, Buffer.from(UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, 128)));
