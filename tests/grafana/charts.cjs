// Panels as SVG and HTML: what Grafana's own would look like, as far as the JSON says it.
"use strict";
const data = require("./grafana.cjs");

const theme = data.createTheme({ colors: { mode: "dark" } });
const INK = "#ccccdc";
const FAINT = "#8e9096";
const GRID = "#2c2f36";
const escape = (text) => String(text).replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]);

const color = (name) => (name === "text" ? INK : name);

function format(value, defaults, decimals = defaults.decimals) {
  return data.formattedValueToString(data.getValueFormat(defaults.unit)(value, decimals ?? null));
}

// The text and the colour of a value: its mapping, else its threshold.
function shown(value, defaults, steps = defaults.thresholds.steps) {
  const mapped = defaults.mappings[0]?.options[String(value)];
  if (mapped) return { text: mapped.text, color: mapped.color };
  const step = steps.filter((one) => one.value === null || value >= one.value).at(-1);
  return { text: typeof value === "number" ? format(value, defaults) : String(value), color: color(step.color) };
}

function overridden(panel, name, id) {
  const found = panel.fieldConfig.overrides.find((one) => one.matcher.options.names.includes(name));
  return found?.properties.find((one) => one.id === id)?.value;
}

function colorOf(panel, name, index) {
  const own = overridden(panel, name, "color");
  if (own) return own.fixedColor;
  const mode = panel.fieldConfig.defaults.color;
  if (mode.mode === "fixed") return mode.fixedColor;
  const field = { name, type: "number", config: { color: mode, displayName: name }, state: { displayName: name, seriesIndex: index }, values: [] };
  return data.fieldColorModeRegistry.get(mode.mode).getCalculator(field, theme)(0, 0);
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function clock(seconds) {
  return new Date(seconds * 1000).toISOString().slice(11, 16);
}

// Frame, time axis and marks that charts over time share.
function frame(box, span, marks) {
  const { left, top, width, height } = box;
  const x = (at) => left + ((at - span.start) / (span.end - span.start)) * width;
  const parts = [];
  for (let at = Math.ceil(span.start / 600) * 600; at <= span.end; at += 600) {
    if (x(at) < left + 14 || x(at) > left + width - 10) continue;
    parts.push(`<line x1="${x(at)}" y1="${top}" x2="${x(at)}" y2="${top + height}" stroke="${GRID}"/>`);
    parts.push(`<text x="${x(at)}" y="${top + height + 15}" text-anchor="middle" class="axis">${clock(at)}</text>`);
  }
  for (const mark of marks) {
    const [from, to] = [x(mark.from), x(mark.to)];
    parts.push(`<line x1="${from}" y1="${top}" x2="${from}" y2="${top + height}" stroke="${mark.color}" stroke-dasharray="3 3" opacity="0.6"/>`);
    parts.push(`<rect x="${from}" y="${top + height}" width="${Math.max(2, to - from)}" height="3" fill="${mark.color}" opacity="0.8"/>`);
  }
  return { x, parts };
}

function legend(panel, series, width) {
  const items = series.map(({ name }, index) => {
    const style = overridden(panel, name, "custom.lineStyle");
    const dash = style?.fill === "dash" ? ` stroke-dasharray="${style.dash.join(" ")}"` : "";
    const stroke = colorOf(panel, name, index);
    return `<span class="item"><svg width="18" height="8"><line x1="0" x2="18" y1="4" y2="4" stroke="${stroke}" stroke-width="3"${dash}/></svg>${escape(name)}</span>`;
  });
  return `<div class="legend" style="width:${width}px">${items.join("")}</div>`;
}

function nothing(panel) {
  return `<div class="nothing">${escape(panel.fieldConfig.defaults.noValue ?? "No data")}</div>`;
}

function timeseries(panel, frames, size, span, marks) {
  const series = frames.flat();
  if (!series.length) return nothing(panel);
  const { defaults } = panel.fieldConfig;
  const box = { left: 72, top: 6, width: size.width - 84, height: size.height - 54 };
  const values = series.flatMap((one) => one.points.map(([, value]) => value)).filter(Number.isFinite);
  const limits = defaults.custom.thresholdsStyle ? defaults.thresholds.steps.filter((step) => step.value !== null) : [];
  const low = defaults.min ?? Math.min(...values);
  let high = Math.max(...values, low) || 1;
  high = defaults.max !== undefined ? defaults.max : high * 1.08;
  for (const step of limits) if (step.value > high && step.value < 1.6 * high) high = step.value * 1.08;
  const y = (value) => box.top + box.height - ((value - low) / (high - low)) * box.height;
  const { x, parts } = frame(box, span, marks);
  for (const at of ticks(low, high, Math.max(2, Math.round(box.height / 36)))) {
    parts.push(`<line x1="${box.left}" x2="${box.left + box.width}" y1="${y(at)}" y2="${y(at)}" stroke="${GRID}"/>`);
    parts.push(`<text x="${box.left - 8}" y="${y(at) + 4}" text-anchor="end" class="axis">${escape(format(at, defaults, null))}</text>`);
  }
  series.forEach(({ name, points }, index) => {
    const style = overridden(panel, name, "custom.lineStyle");
    const dash = style?.fill === "dash" ? ` stroke-dasharray="${style.dash.join(" ")}"` : "";
    let path = "";
    let before = -Infinity;
    for (const [at, value] of points) {
      if (!Number.isFinite(value)) continue;
      path += `${at - before > span.step * 1.5 ? "M" : "L"}${x(at).toFixed(1)} ${y(Math.min(value, high)).toFixed(1)}`;
      before = at;
    }
    parts.push(`<path d="${path}" fill="none" stroke="${colorOf(panel, name, index)}" stroke-width="${defaults.custom.lineWidth}" stroke-linejoin="round"${dash}/>`);
  });
  for (const step of limits) {
    if (step.value <= high) parts.push(`<line x1="${box.left}" x2="${box.left + box.width}" y1="${y(step.value)}" y2="${y(step.value)}" stroke="${step.color}" stroke-width="1.5" stroke-dasharray="10 8"/>`);
  }
  return `<svg width="${size.width}" height="${size.height - 26}">${parts.join("")}</svg>${legend(panel, series, size.width)}`;
}

function statetimeline(panel, frames, size, span, marks) {
  const series = frames.flat().sort((a, b) => a.name.localeCompare(b.name));
  if (!series.length) return nothing(panel);
  const left = Math.min(250, 12 + 6.4 * Math.max(...series.map((one) => one.name.length)));
  const box = { left, top: 4, width: size.width - left - 12, height: size.height - 28 };
  const { x, parts } = frame(box, span, marks);
  const row = box.height / series.length;
  series.forEach(({ name, points }, number) => {
    const top = box.top + number * row + row * 0.08;
    const height = Math.min(row * 0.84, 34);
        parts.push(`<text x="${box.left - 8}" y="${top + height / 2 + 4}" text-anchor="end" class="axis" fill="${INK}">${escape(name)}</text>`);
    const runs = [];
    for (const [at, value] of points) {
      const last = runs.at(-1);
      if (last && last.value === value && at - last.to <= span.step * 1.5) last.to = at;
      else runs.push({ value, from: at, to: at });
    }
    runs.forEach((run, index) => {
      const end = runs[index + 1] && runs[index + 1].from - run.to <= span.step * 1.5 ? runs[index + 1].from : run.to;
      const state = shown(run.value, panel.fieldConfig.defaults);
      const width = Math.max(1, x(end) - x(run.from) - 1);
      parts.push(`<rect x="${x(run.from)}" y="${top}" width="${width}" height="${height}" rx="2" fill="${state.color}" fill-opacity="0.8"/>`);
      if (width > state.text.length * 6.6 + 8) parts.push(`<text x="${x(run.from) + 6}" y="${top + height / 2 + 4}" class="state">${escape(state.text)}</text>`);
    });
  });
  return `<svg width="${size.width}" height="${size.height}">${parts.join("")}</svg>`;
}

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];

function heatmap(panel, frames, size, span, marks) {
  const edge = (one) => (one.labels.le === "+Inf" ? Infinity : Number(one.labels.le));
  const rows = frames.flat().sort((a, b) => edge(a) - edge(b));
  if (!rows.length) return nothing(panel);
  const box = { left: 72, top: 6, width: size.width - 84, height: size.height - 30 };
  const { x, parts } = frame(box, span, marks);
  const row = box.height / rows.length;
  const cells = [];
  rows.forEach((one, number) => {
    const below = number ? new Map(rows[number - 1].points) : new Map();
    for (const [at, value] of one.points) {
      const count = value - (below.get(at) ?? 0);
      if (count > 1e-9) cells.push({ at, number, count });
    }
  });
  const most = Math.max(...cells.map((one) => one.count), 1e-9);
  const width = (span.step / (span.end - span.start)) * box.width;
  for (const { at, number, count } of cells) {
    const fill = VIRIDIS[Math.min(9, Math.floor(Math.sqrt(count / most) * 10))];
    parts.push(`<rect x="${(x(at) - width).toFixed(1)}" y="${(box.top + box.height - (number + 1) * row).toFixed(1)}" width="${(width + 0.3).toFixed(1)}" height="${(row - 1).toFixed(1)}" fill="${fill}"/>`);
  }
  rows.forEach((one, number) => {
    const text = edge(one) === Infinity ? "+Inf" : format(edge(one), panel.fieldConfig.defaults);
    const y = box.top + box.height - (number + 1) * row;
    if (row >= 11 || number % 2 === 1 || number === rows.length - 1) parts.push(`<text x="${box.left - 8}" y="${y + 5}" text-anchor="end" class="axis">${escape(text)}</text>`);
  });
  return `<svg width="${size.width}" height="${size.height}">${parts.join("")}</svg>`;
}

const lastOf = (series) => series.points.at(-1)?.[1];

function stat(panel, frames, size) {
  const series = frames.flat();
  const { defaults } = panel.fieldConfig;
  const back = panel.options.colorMode === "background";
  if (!series.length) return `<div class="stat"><div class="value" style="font-size:24px;color:${FAINT}">${escape(defaults.noValue ?? "No data")}</div></div>`;
  const blocks = series.map((one) => {
    const found = shown(lastOf(one), defaults);
    const name = panel.options.textMode === "value" ? "" : `<div class="name">${escape(one.name)}</div>`;
    const font = Math.min(44, (size.width / series.length - 20) / (found.text.length * 0.58));
    const style = back ? `background:${found.color};color:#fff` : `color:${found.color}`;
    return `<div class="block" style="${style}"><div class="value" style="font-size:${font}px">${escape(found.text)}</div>${name}</div>`;
  });
  return `<div class="stat">${blocks.join("")}</div>`;
}

function gauge(panel, frames, size) {
  const [series] = frames.flat();
  if (!series) return nothing(panel);
  const { defaults } = panel.fieldConfig;
  const found = shown(lastOf(series), defaults);
  const [cx, cy, radius] = [size.width / 2, size.height * 0.6, Math.min(size.width / 2.6, size.height * 0.52)];
  const point = (share, r) => {
    const angle = Math.PI * (1.1 - 1.2 * Math.min(1, Math.max(0, share)));
    return `${(cx + r * Math.cos(angle)).toFixed(1)} ${(cy - r * Math.sin(angle)).toFixed(1)}`;
  };
  const arc = (from, to, r, stroke, width) => `<path d="M${point(from, r)} A${r} ${r} 0 ${to - from > 0.84 ? 1 : 0} 1 ${point(to, r)}" fill="none" stroke="${stroke}" stroke-width="${width}"/>`;
  const share = (value) => (value - defaults.min) / (defaults.max - defaults.min);
  const { steps } = defaults.thresholds;
  const ring = steps.map((step, index) => arc(step.value === null ? 0 : share(step.value), steps[index + 1] ? share(steps[index + 1].value) : 1, radius, color(step.color), 4));
  return `<svg width="${size.width}" height="${size.height}">${arc(0, 1, radius - 14, GRID, 20)}${arc(0, share(lastOf(series)), radius - 14, found.color, 20)}${ring.join("")}
    <text x="${cx}" y="${cy + 2}" text-anchor="middle" font-size="30" font-weight="500" fill="${found.color}">${escape(found.text)}</text>
    <text x="${cx}" y="${size.height - 8}" text-anchor="middle" class="axis">${escape(series.name)}</text></svg>`;
}

// The transformations merge and organize, as far as the dashboards use them.
function rowsOf(panel, frames) {
  const rows = [];
  frames.forEach((frameOf, number) => {
    const column = frames.length > 1 ? `Value #${String.fromCharCode(65 + number)}` : "Value";
    for (const one of frameOf) {
      // A row that says the same in all that the two have in common, and nothing yet in this column.
      const same = (row) => !(column in row) && Object.entries(one.labels).every(([name, value]) => !(name in row) || row[name] === value);
      const row = number ? rows.find(same) : undefined;
      if (row) Object.assign(row, one.labels, { [column]: lastOf(one) });
      else rows.push({ ...one.labels, [column]: lastOf(one) });
    }
  });
  return rows;
}

function table(panel, frames, size) {
  const rows = rowsOf(panel, frames);
  const { defaults } = panel.fieldConfig;
  if (!rows.length) return nothing(panel);
  const organize = panel.transformations.find((one) => one.id === "organize").options;
  const place = (name) => organize.indexByName[name] ?? 99;
  const columns = [...new Set(rows.flatMap(Object.keys))].filter((name) => !organize.excludeByName[name] && rows.some((row) => row[name] !== "")).sort((a, b) => place(a) - place(b));
  const title = (name) => organize.renameByName[name] ?? name;
  const sort = panel.options.sortBy?.[0];
  if (sort) {
    const by = columns.find((name) => title(name) === sort.displayName);
    const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
    rows.sort((a, b) => order(a[by], b[by]) * (sort.desc ? -1 : 1));
  }
  const cells = (row) => columns.map((name) => {
    const value = row[name];
    if (value === undefined || value === "") return `<td>${escape(defaults.noValue ?? "")}</td>`;
    const steps = overridden(panel, title(name), "thresholds")?.steps ?? defaults.thresholds.steps;
    const found = shown(value, defaults, steps);
    const paint = overridden(panel, title(name), "custom.cellOptions") ? `;color:${found.color}${found.color === INK ? "" : ";font-weight:600"}` : "";
    return `<td style="text-align:${typeof value === "number" && !defaults.mappings[0]?.options[value] ? "right" : "left"}${paint}">${escape(found.text)}</td>`;
  }).join("");
  const head = columns.map((name) => `<th style="text-align:${rows.some((row) => typeof row[name] === "number" && !defaults.mappings[0]?.options[row[name]]) ? "right" : "left"}">${escape(title(name))}</th>`).join("");
  const fit = Math.floor((size.height - 30) / 29);
  return `<table><tr>${head}</tr>${rows.slice(0, fit).map((row) => `<tr>${cells(row)}</tr>`).join("")}</table>`;
}

function text(panel) {
  return `<div class="text">${data.renderMarkdown(panel.options.content)}</div>`;
}

module.exports = { escape, timeseries, "state-timeline": statetimeline, heatmap, stat, gauge, table, text };
