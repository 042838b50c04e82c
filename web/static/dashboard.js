/* The dashboard: fetches /dashboard/data each second and draws it. Text from the server is never markup. */
"use strict";

import { bars, clock, html, legend, meters, number, overTime } from "./charts.js";
import { byPlace, colourOf, TARGET } from "./drafters.js";
import { keyed, whenGiven } from "./key.js";
import { timeline, zoomed } from "./timeline.js";

const EVERY_MS = 1000, RECENT_S = 10, SMOOTH = 3, GAP_S = 5;
const TABLES = ["lookup", "phrases", "suffix"];
const STAGES = { start: "a verifier", verify: "verify", draft: "draft", fuse: "fuse", settle: "settling", room: "room (tasks)" };
const ENDS = { stop: "complete", length: "at their length", cancelled: "cancelled", error: "failed" };
const KINDS = ["verify", "draft", "fuse", "control"];
const $ = (id) => document.getElementById(id);

const state = { samples: [], data: null, live: true, chosen: null, timer: 0, spans: null };

async function get(url) {
  const response = await keyed(url);
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return response.json();
}

/* Fetch and draw; `manual`: on the user's action, also while paused. */
async function refresh(manual = false) {
  clearTimeout(state.timer);
  try {
    const after = state.samples.at(-1)?.at_s ?? Date.now() / 1000 - 900;
    const data = await get(`/dashboard/data?after=${Math.max(0, after)}`);
    if (!state.live && !manual) return; // paused while the answer was on its way
    const samples = [...state.samples, ...data.samples];
    state.samples = samples.filter((sample) => sample.at_s > data.now_s - 905);
    state.data = data;
    await chooseRequest(data);
    show();
  } catch (error) {
    health(`No answer: ${error.message}`, "bad");
  }
  if (state.live && !document.hidden) state.timer = setTimeout(refresh, EVERY_MS);
}

async function chooseRequest(data) {
  const known = data.requests.some((request) => request.trace === state.chosen);
  if (!known || ($("follow").checked && data.requests.length)) state.chosen = busiest(data.requests);
  if (!state.chosen) return;
  const before = state.spans;
  const facts = data.requests.find((request) => request.trace === state.chosen);
  if (before && before.trace === state.chosen && before.tokens === facts.tokens && facts.reason) return; // nothing new
  try {
    state.spans = { ...(await get(`/dashboard/requests/${encodeURIComponent(state.chosen)}`)), tokens: facts.tokens };
  } catch {
    state.spans = null; // its traces are gone by now
  }
}

/* Choose the newest request with some tokens: its timeline shows more than that of one just begun. */
function busiest(requests) {
  const newest = [...requests].sort((a, b) => b.created_s - a.created_s);
  return (newest.find((request) => request.tokens > 8) || newest[0])?.trace ?? null;
}

function show() {
  const { data, samples } = state;
  showHealth(data);
  showTiles(data, samples);
  showOverTime(data, samples);
  showBusy(data, samples);
  showSpeculation(data);
  showPositions(data);
  showMatrix(data);
  showTimeline(data);
  showNodes(data);
}

function health(text, kind) {
  if ($("health-text").textContent !== text) $("health-text").textContent = text;
  $("health").className = kind;
}

function showHealth(data) {
  const words = { draft: "no drafter lives: plain decoding", fuse: "no fusion: drafters fuse for themselves", beat: "no beat: the policy stands still",
    verify: "no verifier: nothing is generated", control: "no control: tasks are not taken in", web: "no web process has a pulse" };
  if (data.missing.length) health(`Degraded: ${data.missing.map((kind) => words[kind]).join("; ")}`, data.missing.includes("verify") ? "bad" : "warn");
  else health("All processes live", "good");
}

/* Return the increase of `pick(sample)` in the last `seconds`, and the seconds it took. */
function added(samples, seconds, pick) {
  const last = samples.at(-1);
  const first = samples.find((sample) => sample.at_s >= (last?.at_s ?? 0) - seconds);
  if (!first || first === last) return null;
  return { by: Math.max(0, pick(last) - pick(first)), in: last.at_s - first.at_s };
}

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

/* Return a quantile of a histogram's increase in the time shown: `part` of it lies below. */
function quantile(samples, name, bounds, part) {
  const shown = inView(samples);
  if (shown.length < 2) return NaN;
  const counts = shown.at(-1)[name].slice(0, -1).map((count, i) => Math.max(0, count - shown[0][name][i]));
  const wanted = part * counts.reduce((sum, count) => sum + count, 0);
  if (!wanted) return NaN;
  let seen = 0;
  const i = counts.findIndex((count) => (seen += count) >= wanted);
  if (i >= bounds.length) return bounds.at(-1);
  const low = i ? bounds[i - 1] : 0;
  return low + (bounds[i] - low) * (1 - (seen - wanted) / counts[i]);
}

function inView(samples) {
  const to = samples.at(-1)?.at_s ?? 0;
  return samples.filter((sample) => sample.at_s >= to - span());
}

const span = () => Number(document.querySelector("input[name=span]:checked").value);

function showTiles(data, samples) {
  const rate = added(samples, RECENT_S, (sample) => total(sample.tokens));
  $("t-rate").textContent = rate ? number(rate.by / rate.in, 1) : "–";
  $("t-active").textContent = data.running;
  $("t-waiting").textContent = `running, ${data.depths.start + data.depths.room} waiting`;
  const view = inView(samples), last = view.at(-1), first = view[0];
  if (last) {
    const rounds = last.lengths.slice(0, -1).reduce((sum, count, i) => sum + count - first.lengths[i], 0);
    $("t-length").textContent = rounds > 0 ? number((last.lengths.at(-1) - first.lengths.at(-1)) / rounds, 2) : "–";
  }
  for (const [id, name] of [["t-first", "first_token"], ["t-each", "per_token"]]) {
    const [half, most] = [0.5, 0.95].map((part) => 1000 * quantile(samples, name, data.bounds[name], part));
    $(id).textContent = number(half, half < 10 ? 1 : 0);
    $(`${id}-unit`).textContent = Number.isFinite(most) ? `ms, median; 95 % below ${number(most, 0)}` : "ms, median";
  }
  const caches = data.nodes.filter((node) => node.info.cache_tokens);
  const [whole, free] = ["cache_tokens", "cache_tokens_free"].map((name) => caches.reduce((sum, node) => sum + node.info[name], 0));
  $("t-kv").textContent = whole ? `${number(100 * (1 - free / whole), 1)} %` : "–";
  $("t-kv-unit").textContent = last?.prompt ? `${number((100 * last.reused) / last.prompt, 0)} % of prompts reused` : "of the tokens there is room for";
}

/* Return a counter's rate at each sample, over the last SMOOTH of them; null where samples are missing. */
function rates(samples, pick) {
  return samples.map((sample, i) => {
    const before = samples[Math.max(0, i - SMOOTH)], gap = i ? sample.at_s - samples[i - 1].at_s : Infinity;
    return i && gap < GAP_S ? Math.max(0, pick(sample) - pick(before)) / (sample.at_s - before.at_s) : null;
  });
}

function drafterNames(data, samples) {
  const names = new Set([...Object.keys(data.asked), ...data.positions.map((one) => one.drafter)]);
  for (const name of Object.keys(samples.at(-1)?.tokens ?? {})) names.add(name);
  names.delete(TARGET);
  return [...names].sort(byPlace);
}

const classOf = (name) => (name === TARGET ? "k-target" : `k-${colourOf(name)}`);

function showOverTime(data, all) {
  const samples = inView(all), to = samples.at(-1)?.at_s ?? data.now_s, from = to - span();
  const times = samples.map((sample) => sample.at_s), names = drafterNames(data, all);
  const proposed = [TARGET, ...names].map((name) => ({
    name, colour: classOf(name), values: rates(samples, (sample) => sample.tokens[name] ?? 0),
  })).filter((one) => one.name === TARGET || one.values.some((value) => value));
  overTime($("c-rate"), { times, series: proposed, from, to, stacked: true, unit: "/s", least: 1 });
  legend($("l-rate"), proposed.map(({ name, colour }) => ({ name: name === TARGET ? "the target itself" : name, colour })));
  const waits = Object.entries(STAGES).map(([stage, name], i) => ({
    name, colour: `k-${i}`, values: samples.map((sample) => sample.depths[stage] ?? 0),
  }));
  overTime($("c-queues"), { times, series: waits, from, to, least: 4 });
  legend($("l-queues"), waits.map(({ name, colour }) => ({ name, colour })));
  const drafted = rates(samples, (sample) => sample.rounds_drafted);
  const inRow = rates(samples, (sample) => sample.depth).map((sum, i) => (drafted[i] ? sum / drafted[i] : null));
  const course = [
    { name: "draft tokens in a row", colour: "k-accent", values: inRow },
    { name: "most the policy allows models", colour: "k-target dashed", values: samples.map((sample) => sample.longest_draft) },
    { name: "sequences running", colour: "k-3", values: samples.map((sample) => sample.running) },
  ];
  overTime($("c-spec"), { times, series: course, from, to, least: 8 });
  legend($("l-spec"), course.map(({ name, colour }) => ({ name, colour })));
}

function showBusy(data, samples) {
  meters($("busy"), KINDS.map((kind) => {
    const found = added(samples, RECENT_S, (sample) => sample.busy[kind] ?? 0);
    const many = Math.max(1, data.nodes.filter((node) => node.kind === kind).length);
    const part = found ? Math.min(1, found.by / found.in / many) : 0;
    return { name: kind, colour: `k-${kind}`, part, text: found ? `${number(100 * part, 0)} %` : "–" };
  }));
  const reasons = Object.entries(data.ended).sort((a, b) => b[1] - a[1]);
  $("ended").replaceChildren(...(reasons.length ? reasons : [["none yet", 0]]).map(([reason, count]) =>
    html("div", {}, html("dt", { textContent: ENDS[reason] || reason }), html("dd", { textContent: number(count) }))));
}

function showSpeculation(data) {
  const groups = data.load.filter((group) => group.rounds);
  const from = (i) => (i ? groups[i - 1].sequences + 1 : 1);
  bars($("c-load"), {
    bars: groups.map((group, i) => ({
      label: from(i) < group.sequences && i ? `≤${group.sequences}` : `${group.sequences}`,
      value: group.drafted / group.rounds,
      note: `${number(group.drafted / group.rounds)} draft tokens a round\nin ${number(group.rounds)} rounds of steps with up to ${group.sequences} sequences`,
    })),
    empty: "No round has been verified yet.",
  });
  const counts = data.lengths.slice(0, -1), rounds = counts.reduce((sum, count) => sum + count, 0);
  const last = counts.findLastIndex((count) => count > 0);
  bars($("c-lengths"), {
    bars: counts.slice(0, last + 1).map((count, i) => ({
      label: `${data.bounds.lengths[i] ?? "more"}`,
      value: (100 * count) / rounds,
      note: `${number(count)} of ${number(rounds)} rounds`,
    })),
    format: (value) => `${number(value, 0)}%`, colour: "k-2", empty: "No round has been verified yet.",
  });
  const names = drafterNames(data, state.samples), most = Math.max(1, ...Object.values(data.asked));
  meters($("asked"), names.filter((name) => data.asked[name]).map((name) => ({
    name, colour: classOf(name), part: data.asked[name] / most, text: `${number((100 * data.asked[name]) / most, 0)} %`,
  })));
  if (!total(data.asked)) $("asked").replaceChildren(html("p", { className: "empty", textContent: "Nobody has been asked yet." }));
}

function heat(part, weight, text, tip) {
  const cell = html("td", { textContent: text });
  cell.style.setProperty("--heat-part", `${(100 * part).toFixed(0)}%`);
  cell.style.setProperty("--weight", weight);
  cell.dataset.tip = tip;
  return cell;
}

function table(host, heads, rows) {
  const top = html("tr", {}, ...heads.map((text) => html("th", { scope: "col", textContent: text })));
  host.replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
}

function showPositions(data) {
  const names = drafterNames(data, state.samples);
  const deepest = Math.min(8, Math.max(0, ...data.positions.map((one) => one.position)));
  const places = Array.from({ length: deepest }, (_, i) => i + 1);
  const most = Math.max(1, ...data.positions.map((one) => one.drafted));
  const rows = names.filter((name) => data.positions.some((one) => one.drafter === name)).map((name) => {
    const cells = places.map((place) => {
      const found = data.positions.find((one) => one.drafter === name && one.position === place);
      if (!found?.drafted) return html("td", { className: "none", textContent: "·" });
      const part = found.accepted / found.drafted;
      return heat(part, 0.35 + 0.65 * Math.sqrt(found.drafted / most), `${number(100 * part, 0)}`,
        `${name}, position ${place}\n${number(found.accepted)} right of ${number(found.drafted)} verified`);
    });
    return html("tr", {}, html("th", { scope: "row", textContent: name }), ...cells);
  });
  if (rows.length) table($("positions"), ["%", ...places], rows);
  else empty($("positions"), "No draft token has been verified yet.");
}

function empty(host, text) {
  host.replaceChildren(html("caption", { className: "empty", textContent: text }));
}

function showMatrix(data) {
  const live = new Set(data.nodes.flatMap((node) => node.info.drafters ?? []));
  const part = (name) => TABLES.includes(name) || live.has(name) || data.requests.some((one) => one.stats.by_drafter[name]);
  const names = drafterNames(data, state.samples).filter(part);
  const focused = document.activeElement?.dataset?.trace;
  const rows = [...data.requests].sort((a, b) => b.created_s - a.created_s).slice(0, 8).map((request) => {
    const pick = html("button", { type: "button", className: "pickone", textContent: request.trace.slice(0, 6) });
    pick.dataset.trace = request.trace;
    pick.setAttribute("aria-pressed", String(request.trace === state.chosen));
    pick.setAttribute("aria-label", `Timeline of request ${request.trace.slice(0, 6)}`);
    const most = Math.max(1, ...Object.values(request.stats.by_drafter).map((one) => one.drafted));
    const cells = names.map((name) => {
      const found = request.stats.by_drafter[name];
      if (!found?.drafted) return html("td", { className: "none", textContent: "·" });
      return heat(found.accepted / found.drafted, 0.35 + 0.65 * Math.sqrt(found.drafted / most), `${found.drafted}`,
        `${name}: ${found.accepted} right of ${found.drafted} verified (${number((100 * found.accepted) / found.drafted, 0)} %)`);
    });
    const age = data.now_s - request.created_s;
    const ended = request.reason || "runs";
    return html("tr", { className: request.trace === state.chosen ? "chosen" : "" }, html("th", { scope: "row" }, pick),
      html("td", { className: "plain when", textContent: `${ended}, ${clock(age)} ago` }),
      html("td", { className: "plain", textContent: number(request.tokens / Math.max(1, request.stats.rounds), 2) }), ...cells);
  });
  if (!rows.length) return empty($("matrix"), "No request has been seen yet.");
  table($("matrix"), ["Request", "State", "Length", ...names], rows);
  $("matrix").querySelector("th:nth-child(2)").className = "when";
  if (focused) document.querySelector(`[data-trace="${CSS.escape(focused)}"]`)?.focus();
}

function showTimeline(data) {
  const facts = data.requests.find((request) => request.trace === state.chosen);
  if (!facts || !state.spans?.spans.length) return;
  timeline($("line"), $("line-about"), $("l-line"), facts, state.spans.spans);
}

function showNodes(data) {
  const rows = data.nodes.map(({ kind, name, still_s: still, info }) => {
    const { ahead_hits: hits = 0, ahead_misses: misses = 0, ...others } = info;
    const facts = Object.entries(others).map(([key, value]) => `${key.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : typeof value === "number" ? number(value) : value}`);
    if (hits + misses) facts.push(`${number(hits)} of ${number(hits + misses)} outcomes guessed ahead of the verdict`);
    return html("tr", {}, html("th", { scope: "row", textContent: name }),
      html("td", { className: "plain" }, html("span", { className: `key k-${kind}`, ariaHidden: "true" }), kind),
      html("td", { className: "plain", textContent: still > 5 ? `at one piece of work for ${clock(still)}` : "goes on" }),
      html("td", { className: "plain", textContent: facts.join(" · ") }));
  });
  table($("nodes"), ["Process", "Kind", "Progress", "What it says of itself"], rows);
  const { version, ...fields } = data.policy;
  $("policy").textContent = `Policy ${version}: ${Object.entries(fields).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ")}.`;
}

$("live").addEventListener("click", () => {
  state.live = !state.live;
  $("live").setAttribute("aria-pressed", String(state.live));
  $("live").textContent = state.live ? "Live" : "Paused";
  if (state.live) refresh();
});
$("span").addEventListener("change", () => state.data && show());
$("follow").addEventListener("change", () => refresh(true));
$("matrix").addEventListener("click", (event) => {
  const trace = event.target.closest("button")?.dataset.trace;
  if (!trace) return;
  state.chosen = trace;
  $("follow").checked = false;
  refresh(true);
});
for (const [id, factor] of [["in", 2], ["out", 0.5]]) {
  $(id).addEventListener("click", () => {
    zoomed(factor);
    if (state.data) showTimeline(state.data);
  });
}
document.addEventListener("visibilitychange", () => !document.hidden && state.live && refresh());
whenGiven(() => refresh(true));
addEventListener("resize", () => state.data && show());
refresh();
