/* Small charts in SVG. Each update draws a chart anew; its label holds the same values as text. */
"use strict";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LEFT = 44, RIGHT = 10, TOP = 16, BOTTOM = 22;

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function html(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

export function number(value, digits) {
  if (!Number.isFinite(value)) return "–";
  const places = digits ?? (Math.abs(value) >= 100 || value === 0 ? 0 : Math.abs(value) >= 10 ? 1 : 2);
  return value.toLocaleString("en", { minimumFractionDigits: digits ?? 0, maximumFractionDigits: places });
}

const ROUND = [[1, 4], [1.5, 3], [2, 4], [2.5, 5], [3, 3], [4, 4], [5, 5], [6, 3], [8, 4], [10, 5]]; // a round factor, and into how many parts to cut it

/* Return a round number not below `value`, and into how many parts to cut it. */
function ceiling(value) {
  if (!(value > 0)) return [1, 2];
  const unit = 10 ** Math.floor(Math.log10(value));
  const [factor, parts] = ROUND.find(([round]) => round * unit >= value * 0.9999);
  return [factor * unit, parts];
}

function frame(host, label, top, format) {
  const width = Math.max(220, host.clientWidth), height = host.clientHeight || 170;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const [most, parts] = ceiling(top);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / most);
  for (let i = 0; i <= parts; i += 1) {
    const value = (most * i) / parts;
    root.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: i ? "grid" : "axis" }));
    root.append(svg("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, format(value)));
  }
  return { root, width, height, y };
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

/* Draw series over time: [{name, colour, values}], a value a time, null if unknown; stacked, or as lines. */
export function overTime(host, { times, series, from, to, stacked = false, format = number, unit = "", least = 0 }) {
  const sums = times.map(() => 0);
  const shown = series.map((one) => {
    const upper = one.values.map((value, i) => (value === null ? null : stacked ? (sums[i] += value) : value));
    return { ...one, upper, lower: stacked ? upper.map((value, i) => (value === null ? null : value - one.values[i])) : null };
  });
  const top = Math.max(least, ...shown.flatMap((one) => one.upper.filter((value) => value !== null)));
  const last = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? 0)}${unit}`).join(", ");
  const { root, width, height, y } = frame(host, `Now: ${last || "nothing"}`, top, format);
  const x = (time) => LEFT + ((width - LEFT - RIGHT) * (time - from)) / (to - from);
  for (const one of shown) {
    for (const [first, end] of pieces(one.upper)) {
      const line = times.slice(first, end).map((time, i) => [x(time), y(one.upper[first + i])]);
      if (stacked) {
        const back = times.slice(first, end).map((time, i) => [x(time), y(one.lower[first + i])]).reverse();
        root.append(svg("path", { d: `${path([...line, ...back])}Z`, class: `area ${one.colour}` }));
      }
      root.append(svg("path", { d: path(line), class: `line ${stacked ? "thin" : ""} ${one.colour}` }));
    }
  }
  const ticks = width < 480 ? 2 : 5;
  for (let i = 0; i <= ticks; i += 1) {
    const time = from + ((to - from) * i) / ticks;
    const text = i === ticks ? "now" : `−${clock(to - time)}`;
    root.append(svg("text", { x: x(time), y: height - 6, class: `tick ${i === ticks ? "end" : i ? "middle" : ""}` }, text));
  }
  follow(host, root, { times, series, x, width, height, format, unit, to });
  host.replaceChildren(root);
}

/* List the runs of known values: [first, end) each. */
function pieces(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (found.length && found.at(-1)[1] === i) found.at(-1)[1] = i + 1;
    else found.push([i, i + 1]);
  });
  return found.filter(([first, end]) => end - first > 1);
}

export function clock(seconds) {
  return seconds >= 120 ? `${number(seconds / 60, seconds % 60 > 1 && seconds < 600 ? 1 : 0)} min` : `${Math.round(seconds)} s`;
}

/* Show a hair line under the pointer and the values there; it stays while the chart is drawn anew. */
function follow(host, root, chart) {
  const hair = svg("line", { y1: TOP, y2: chart.height - BOTTOM, class: "hair", visibility: "hidden" });
  root.append(hair);
  host.chart = chart;
  host.hair = hair;
  if (host.pointer) point(host, host.pointer);
  if (host.follows) return;
  host.follows = true;
  host.addEventListener("pointermove", (event) => {
    host.pointer = { clientX: event.clientX, clientY: event.clientY };
    point(host, host.pointer);
  });
  host.addEventListener("pointerleave", () => {
    host.pointer = null;
    host.hair.setAttribute("visibility", "hidden");
    hint(null);
  });
}

function point(host, { clientX, clientY }) {
  const { times, series, x, format, unit, to } = host.chart;
  if (!times.length) return;
  const at = clientX - host.getBoundingClientRect().left;
  const i = times.reduce((best, time, j) => (Math.abs(x(time) - at) < Math.abs(x(times[best]) - at) ? j : best), 0);
  host.hair.setAttribute("x1", x(times[i]));
  host.hair.setAttribute("x2", x(times[i]));
  host.hair.setAttribute("visibility", "visible");
  const rows = series.filter((one) => one.values[i]).map((one) => `${one.name}: ${format(one.values[i])}${unit}`);
  hint([`${clock(to - times[i])} ago`, ...(rows.length ? rows : ["nothing"])].join("\n"), clientX, clientY);
}

/* Draw bars: [{label, value, note}]; `value` null: unknown. */
export function bars(host, { bars: all, format = number, colour = "k-accent", empty = "Nothing yet." }) {
  if (!all.length) return host.replaceChildren(html("p", { className: "empty", textContent: empty }));
  const label = all.map((bar) => `${bar.label}: ${format(bar.value)}`).join(", ");
  const { root, width, height, y } = frame(host, label, Math.max(...all.map((bar) => bar.value)), format);
  const slot = (width - LEFT - RIGHT) / all.length;
  all.forEach((bar, i) => {
    const middle = LEFT + slot * (i + 0.5), wide = Math.min(46, slot * 0.72);
    const box = { x: middle - wide / 2, width: wide, y: y(bar.value), height: Math.max(0, y(0) - y(bar.value)), rx: 3 };
    root.append(svg("rect", { ...box, class: `bar ${colour}`, "data-tip": bar.note || `${bar.label}: ${format(bar.value)}` }));
    if (slot > 26) root.append(svg("text", { x: middle, y: y(bar.value) - 3, class: "tick middle strong" }, bar.value ? format(bar.value) : ""));
    root.append(svg("text", { x: middle, y: height - 6, class: "tick middle" }, bar.label));
  });
  host.replaceChildren(root);
}

/* Draw meters: rows of [{name, colour, part, text}], `part` of 1. */
export function meters(host, rows) {
  host.replaceChildren(
    ...rows.map(({ name, colour, part, text }) => {
      const fill = html("span", { className: `fill ${colour}` });
      fill.style.width = `${Math.min(100, 100 * part).toFixed(1)}%`;
      return html(
        "div", { className: "meter" },
        html("span", { className: "name", textContent: name }),
        html("span", { className: "track", ariaHidden: "true" }, fill),
        html("b", { textContent: text }),
      );
    }),
  );
}

export function legend(host, entries) {
  const key = JSON.stringify(entries);
  if (host.shown === key) return;
  host.shown = key;
  host.replaceChildren(
    ...entries.map(({ name, colour }) => html("li", {}, html("span", { className: `key ${colour}`, ariaHidden: "true" }), name)),
  );
}

/* Show the page's one hint beside the pointer. */
export function hint(text, x, y) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

document.addEventListener("pointerover", (event) => {
  const text = event.target.closest?.("[data-tip]")?.getAttribute("data-tip");
  if (text) hint(text, event.clientX, event.clientY);
});
document.addEventListener("pointerout", (event) => {
  if (event.target.closest?.("[data-tip]")) hint(null);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hint(null);
});
