/* The figures of the request shown: accepted length, speed, first token, length, and who proposed how many tokens. */
"use strict";

import { byPlace, colourOf, TARGET } from "./drafters.js";
import { speedOf } from "./requests.js";

const $ = (id) => document.getElementById(id);
const counts = new Map(); // tokens by proposer

export function clear() {
  counts.clear();
  $("legend").replaceChildren();
  for (const id of ["accepted", "speed", "ttft", "count"]) $(id).textContent = "–";
}

export function add(run, event) {
  for (const proposer of event.proposers) counts.set(proposer, (counts.get(proposer) || 0) + 1);
  $("count").textContent = run.offset;
  if (event.stats.rounds) $("accepted").textContent = (run.offset / event.stats.rounds).toFixed(2);
  const speed = speedOf(run);
  if (speed > 0) $("speed").textContent = speed.toFixed(1);
  showLegend(event.stats.by_drafter ?? {});
}

export function firstToken(seconds) {
  $("ttft").textContent = (1000 * seconds).toFixed(0);
}

function showLegend(guesses) {
  const names = [...new Set([...counts.keys(), ...Object.keys(guesses)])].filter((name) => name !== TARGET).sort(byPlace);
  if (counts.has(TARGET)) names.push(TARGET);
  $("legend").replaceChildren(...names.map((name) => row(name, counts.get(name) || 0, guesses[name])));
}

function row(name, count, guessed) {
  const item = document.createElement("li");
  const swatch = document.createElement("span");
  const number = document.createElement("b");
  const note = document.createElement("small");
  swatch.className = name === TARGET ? "swatch" : `swatch p${colourOf(name)}`;
  number.textContent = count;
  note.textContent = guessed ? `${guessed.accepted} of ${guessed.drafted} guesses right` : "";
  item.append(swatch, name === TARGET ? "the target itself" : name, number, note);
  return item;
}
