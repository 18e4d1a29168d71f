// Reads dashboards and prints, as JSON, the ids in them that Grafana does not know.
"use strict";
const fs = require("node:fs");
const data = require("./grafana.cjs");

const unknown = [];
const wanted = (kind, id, known, where) => known || unknown.push(`${where}: ${kind} ${id}`);
const units = new Set(data.getValueFormats().flatMap((group) => group.submenu.map((one) => one.value)));
const reducers = new Set(data.fieldReducers.list().map((one) => one.id));
const matchers = new Set(data.fieldMatchers.list().map((one) => one.id));
const transformations = new Set(Object.values(data.DataTransformerID));
const modes = new Set(Object.values(data.FieldColorModeId));

let count = 0;
for (const file of process.argv.slice(2)) {
  const page = JSON.parse(fs.readFileSync(file, "utf8"));
  for (const panel of page.panels.flatMap((one) => (one.panels?.length ? one.panels : [one])).filter((one) => one.type !== "row")) {
    const where = `${page.uid} / ${panel.title}`;
    const { defaults, overrides } = panel.fieldConfig;
    const calcs = [...(panel.options.reduceOptions?.calcs ?? []), ...(panel.options.legend?.calcs ?? [])];
    const shown = [defaults.unit, panel.options.cellValues?.unit].filter(Boolean);
    for (const id of shown) wanted("unit", id, units.has(id), where);
    for (const id of calcs) wanted("reducer", id, reducers.has(id), where);
    for (const one of panel.transformations) wanted("transformation", one.id, transformations.has(one.id), where);
    for (const one of overrides) wanted("matcher", one.matcher.id, matchers.has(one.matcher.id), where);
    wanted("colour mode", defaults.color.mode, modes.has(defaults.color.mode), where);
    count += shown.length + calcs.length + panel.transformations.length + overrides.length + 1;
  }
}
console.log(JSON.stringify({ count, unknown }));
process.exit(0);
