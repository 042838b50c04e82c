/* Both ways: bars of a request's speed with and without speculation, and whether its two texts are the same. */
"use strict";

import { speedOf } from "./requests.js";

const SHOWN = 40; // characters of each text from where they differ
const $ = (id) => document.getElementById(id);

export function clear() {
  $("both").hidden = true;
}

/* Draw the speeds so far; `without`: null before that run has begun. */
export function showSpeeds(withIt, without) {
  const speeds = [withIt, without].map((run) => (run ? speedOf(run) : NaN));
  const most = Math.max(...speeds.filter(Number.isFinite), 1e-9);
  $("both").hidden = false;
  ["with", "without"].forEach((name, i) => {
    $(`bar-${name}`).style.width = Number.isFinite(speeds[i]) ? `${((100 * speeds[i]) / most).toFixed(1)}%` : "0";
    $(`rate-${name}`).textContent = Number.isFinite(speeds[i]) ? `${speeds[i].toFixed(1)} tokens/s` : "–";
  });
  return speeds;
}

export function say(text, kind = "") {
  $("same").className = kind;
  $("same").setAttribute("role", kind === "bad" ? "alert" : "status");
  $("same").textContent = text;
}

/* Compare two ended runs and say the outcome. */
export function conclude(withIt, without) {
  const [fast, slow] = showSpeeds(withIt, without);
  const [first, second] = [withIt.result, without.result];
  const odd = [first, second].find((result) => !["stop", "length"].includes(result.finish_reason));
  if (odd) return say(`Not compared: one of the two ${odd.finish_reason === "cancelled" ? "was stopped" : "failed"}.`);
  const at = difference(first.token_ids, second.token_ids);
  if (at === null && first.text === second.text) {
    const ratio = fast / slow;
    const speed = Number.isFinite(ratio) ? `${ratio.toFixed(2)} times the speed. ` : "";
    return say(`${speed}The text is the same: all ${first.token_ids.length} tokens, compared one by one.`, "good");
  }
  const place = difference(first.text, second.text);
  const rest = (result) => JSON.stringify(result.text.slice(place ?? 0, (place ?? 0) + SHOWN));
  say(`The texts differ from token ${(at ?? 0) + 1} on: ${rest(first)} with speculation, ${rest(second)} without.`, "bad");
}

/* Return the first place where two lists or texts differ, null if they are the same. */
function difference(a, b) {
  for (let i = 0; i < Math.max(a.length, b.length); i += 1) if (a[i] !== b[i]) return i;
  return null;
}
