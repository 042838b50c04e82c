/* A request's timeline: a lane for each process that worked on it, and one for the time it waited. */
"use strict";

import { hint, html, legend, number, svg } from "./charts.js";

const LANE = 30, AXIS = 24, MOST_ZOOM = 64;
const ORDER = ["wait", "verify", "draft", "fuse"];
const WORDS = {
  wait: "waiting: nobody is at work on it", verify: "verify: the target's step and the commit",
  draft: "draft: models guess", fuse: "fuse: tables guess, drafts become a tree",
};
let zoom = 1;

/* Draw the timeline. facts: of /dashboard/data; spans: [start_s, end_s, kind, node, sequences]. */
export function timeline(host, about, keys, facts, spans) {
  const ended = Boolean(facts.reason);
  const begin = Math.min(facts.created_s, ...spans.map((span) => span[0]));
  const end = Math.max(...spans.map((span) => span[1]));
  const waits = gaps(spans, begin, end);
  const lanes = grouped([...waits.map(([from, to]) => [from, to, "wait", "", 1]), ...spans]);
  const kinds = [...new Set(lanes.map((lane) => lane.kind))];
  about.textContent = sentence(facts, lanes, begin, end, ended);
  legend(keys, kinds.map((kind) => ({ name: WORDS[kind] || kind, colour: `k-${kind}` })));
  const old = host.querySelector(".plot");
  const place = old ? (old.scrollLeft + old.clientWidth / 2) / old.scrollWidth : 0.5;
  const names = html("div", { className: "lanes" }, ...lanes.map((lane) => html("span", { textContent: lane.name })));
  const plot = html("div", { className: "plot" });
  host.replaceChildren(names, plot);
  const width = Math.floor((plot.clientWidth || 600) * zoom), height = lanes.length * LANE + AXIS;
  plot.append(drawn(lanes, begin, end, width, height, about.textContent));
  plot.scrollLeft = place * plot.scrollWidth - plot.clientWidth / 2;
}

export function zoomed(factor) {
  zoom = Math.max(1, Math.min(MOST_ZOOM, zoom * factor));
}

/* List the times between begin and end without a span. */
function gaps(spans, begin, end) {
  const found = [];
  let at = begin;
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (from > at) found.push([at, from]);
    at = Math.max(at, to);
  }
  if (end > at) found.push([at, end]);
  return found;
}

function grouped(spans) {
  const lanes = new Map();
  for (const span of spans) {
    const name = span[3] || "waiting";
    if (!lanes.has(name)) lanes.set(name, { name, kind: span[2], spans: [] });
    lanes.get(name).spans.push(span);
  }
  const rank = (lane) => (ORDER.indexOf(lane.kind) + ORDER.length) % (ORDER.length + 1);
  return [...lanes.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
}

function sentence(facts, lanes, begin, end, ended) {
  const whole = end - begin || 1;
  const parts = lanes.map(({ name, spans }) => {
    const busy = spans.reduce((sum, [from, to]) => sum + to - from, 0);
    return `${name} ${number((100 * busy) / whole, 0)} %`;
  });
  const state = ended ? `ended (${facts.reason})` : "runs";
  return `${facts.trace}: ${state}, ${facts.tokens} tokens in ${facts.stats.rounds} rounds, ${number(whole)} s. ${parts.join(", ")}.`;
}

function drawn(lanes, begin, end, width, height, label) {
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (time) => ((width - 8) * (time - begin)) / (end - begin || 1);
  lanes.forEach((lane, row) => {
    root.append(svg("line", { x1: 0, x2: width, y1: (row + 1) * LANE, y2: (row + 1) * LANE, class: "grid" }));
    for (const [from, to, kind, node, sequences] of lane.spans) {
      const box = { x: x(from).toFixed(1), width: Math.max(1.2, x(to) - x(from)).toFixed(1), y: row * LANE + 5, height: LANE - 10, rx: 2 };
      const crowd = sequences > 1 ? `, ${sequences} sequences in the batch` : "";
      const tip = `${node || "waiting"}: ${number(1000 * (to - from))} ms\n${number(from - begin, 3)} s after admission${crowd}`;
      root.append(svg("rect", { ...box, class: `bar k-${kind}`, "data-tip": tip }));
    }
  });
  const steps = Math.max(2, Math.floor(width / 130));
  for (let i = 0; i <= steps; i += 1) {
    const time = begin + ((end - begin) * i) / steps;
    const anchor = i === 0 ? "" : i === steps ? "end" : "middle";
    root.append(svg("text", { x: x(time), y: height - 7, class: `tick ${anchor}` }, `${number(time - begin, 2)} s`));
  }
  root.addEventListener("pointerleave", () => hint(null));
  return root;
}
