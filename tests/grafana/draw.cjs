// A dashboard as one HTML page: its panels at their places, with what Prometheus answers.
// node draw.cjs DASHBOARD.json OUT.html '{"url": ..., "now": ..., "seconds": ..., "values": {...}, "models": [...]}'
"use strict";
const fs = require("node:fs");
const charts = require("./charts.cjs");

const [file, out, asked] = process.argv.slice(2);
const page = JSON.parse(fs.readFileSync(file, "utf8"));
const { url, now, seconds, values, models } = JSON.parse(asked);
const step = Math.max(15, Math.ceil(seconds / 240 / 15) * 15);
const span = { start: now - seconds, end: now, step };

const [WIDTH, UNIT, GAP, HEAD] = [1440, 30, 8, 92];
const column = (WIDTH - 2 * GAP + GAP) / 24;

function filled(text, own) {
  const known = { ...values, ...own, __rate_interval: "1m", __range_s: seconds, __range: `${seconds}s`, __all: "All" };
  return text.replace(/\$\{?(\w+)\}?/g, (_, name) => known[name] ?? "");
}

async function ask(path, parameters) {
  const answer = await fetch(`${url}/api/v1/${path}`, { method: "POST", body: new URLSearchParams(parameters) });
  const body = await answer.json();
  if (body.status !== "success") throw new Error(`${body.error}: ${parameters.query}`);
  return body.data.result;
}

async function queried(target, own) {
  const query = filled(target.expr, own);
  const result = target.instant
    ? await ask("query", { query, time: now })
    : await ask("query_range", { query, start: span.start, end: span.end, step });
  return result.map(({ metric, value, values: points }) => ({
    labels: Object.fromEntries(Object.entries(metric).filter(([name]) => name !== "__name__")),
    name: target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? ""),
    points: (points ?? [value]).map(([at, number]) => [at, Number(number)]),
  }));
}

async function marked() {
  const found = [];
  for (const one of page.annotations.list) {
    for (const { values: points } of await ask("query_range", { query: filled(one.expr, {}), start: span.start, end: span.end, step: 60 })) {
      found.push({ from: points[0][0], to: points.at(-1)[0], color: one.iconColor });
    }
  }
  return found;
}

// Rows that repeat are there once for each of these models, and what is below moves down.
function expanded() {
  const rows = page.panels.filter((one) => one.type === "row");
  const below = (row) => page.panels.filter((one) => one.type !== "row" && one.gridPos.y > row.gridPos.y && !rows.some((other) => other.gridPos.y > row.gridPos.y && one.gridPos.y > other.gridPos.y));
  const owned = new Map(rows.map((row) => [row, below(row)]));
  const placed = page.panels.filter((one) => one.type !== "row" && ![...owned.values()].flat().includes(one)).map((panel) => ({ panel, y: panel.gridPos.y, own: {} }));
  let moved = 0;
  for (const row of rows) {
    const height = 1 + Math.max(0, ...owned.get(row).map((one) => one.gridPos.y + one.gridPos.h - row.gridPos.y - 1));
    const repeats = row.repeat ? models.map((model) => ({ [row.repeat]: model })) : [{}];
    repeats.forEach((own, number) => {
      const shift = moved + number * height;
      for (const panel of [row, ...owned.get(row)]) placed.push({ panel, y: panel.gridPos.y + shift, own });
    });
    moved += (repeats.length - 1) * height;
  }
  return placed;
}

async function drawn({ panel, y, own }, marks) {
  const { x, w, h } = panel.gridPos;
  const [left, top, width, height] = [GAP + x * column, HEAD + y * (UNIT + GAP), w * column - GAP, h * (UNIT + GAP) - GAP];
  const place = `left:${left.toFixed(1)}px;top:${top}px;width:${width.toFixed(1)}px;height:${height}px`;
  if (panel.type === "row") {
    const closed = panel.collapsed ? ` <span class="mark">(${panel.panels.length} panels)</span>` : "";
    return `<h2 style="${place}">${panel.collapsed ? "›" : "⌄"} ${charts.escape(filled(panel.title, own))}${closed}</h2>`;
  }
  const frames = await Promise.all((panel.targets ?? []).map((target) => queried(target, own)));
  const body = charts[panel.type](panel, frames, { width: width - 12, height: height - 42 }, span, marks);
  const link = panel.links.length ? ' <span class="mark">↗</span>' : "";
  return `<section style="${place}"><h3>${charts.escape(filled(panel.title, own))} <span class="info">i</span>${link}</h3>${body}</section>`;
}

const STYLE = `
  * { box-sizing: border-box; margin: 0; }
  body { background: #111217; color: #ccccdc; font: 13px Inter, "DejaVu Sans", "Liberation Sans", Arial, sans-serif; width: ${WIDTH}px; position: relative; }
  header { height: ${HEAD - 8}px; padding: 12px 14px 0; }
  header h1 { font-size: 17px; font-weight: 500; display: inline-block; }
  header .time { float: right; color: #8e9096; }
  header .variables { margin-top: 12px; white-space: nowrap; }
  header .variables span { display: inline-block; border: 1px solid #2e3036; border-radius: 2px; padding: 4px 8px; margin-right: 8px; background: #181b1f; }
  header .variables b { color: #6e9fff; font-weight: 500; margin-right: 8px; }
  h2 { position: absolute; font-size: 15px; font-weight: 500; padding-top: 5px; }
  section { position: absolute; background: #181b1f; border: 1px solid #25282e; border-radius: 3px; overflow: hidden; padding: 0 6px; }
  h3 { font-size: 13px; font-weight: 500; height: 32px; line-height: 32px; padding-left: 4px; white-space: nowrap; }
  .mark { color: #6c7079; font-weight: 400; font-size: 12px; }
  .info { display: inline-block; width: 13px; height: 13px; line-height: 12px; border: 1px solid #6c7079; border-radius: 50%; color: #8e9096; font: italic 10px serif; text-align: center; margin-left: 2px; }
  .axis { font-size: 11.5px; fill: #9a9ca5; }
  .state { font-size: 12px; font-weight: 600; fill: #0b0c0e; }
  .legend { height: 24px; overflow: hidden; padding-left: 6px; white-space: nowrap; }
  .item { font-size: 12px; margin-right: 14px; } .item svg { margin-right: 5px; vertical-align: middle; }
  .nothing { display: flex; height: calc(100% - 48px); align-items: center; justify-content: center; color: #8e9096; font-size: 15px; }
  .stat { display: flex; gap: 6px; height: calc(100% - 38px); align-items: stretch; justify-content: center; }
  .block { flex: 1; display: flex; flex-direction: column; align-items: center; justify-content: center; border-radius: 2px; overflow: hidden; }
  .stat .value { font-weight: 600; line-height: 1.15; align-self: center; } .stat .name { font-size: 12px; opacity: 0.95; white-space: nowrap; }
  table { border-collapse: collapse; width: 100%; } th { color: #6e9fff; font-weight: 500; } td, th { padding: 0 10px; height: 29px; border-bottom: 1px solid #25282e; white-space: nowrap; }
  .text { padding: 2px 8px; line-height: 1.42; font-size: 12.5px; } .text p, .text ul { margin-bottom: 7px; } .text ul { padding-left: 18px; } .text li { margin-bottom: 5px; }
`;

async function main() {
  const marks = await marked();
  const placed = expanded();
  const panels = await Promise.all(placed.map((one) => drawn(one, marks)));
  const height = HEAD + Math.max(...placed.map(({ panel, y }) => y + panel.gridPos.h)) * (UNIT + GAP) + 4;
  const variables = page.templating.list.filter((one) => one.type !== "datasource").map((one) => {
    const value = values[one.name];
    return `<span><b>${charts.escape(one.label)}</b>${charts.escape(value === ".*" ? "All" : value)}</span>`;
  });
  const times = [span.start, span.end].map((at) => new Date(at * 1000).toISOString().slice(11, 16));
  fs.writeFileSync(out, `<!doctype html><meta charset="utf-8"><style>${STYLE}</style><body style="height:${height}px">
    <header><h1>${charts.escape(page.title)}</h1><span class="time">${times.join(" to ")} UTC</span><div class="variables">${variables.join("")}</div></header>
    ${panels.join("\n")}</body>`);
  console.log(JSON.stringify({ width: WIDTH, height }));
}

main().then(() => process.exit(0), (fault) => { console.error(fault); process.exit(1); });
