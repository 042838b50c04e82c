/* The answer: its tokens with their drafters, shown as Markdown, as they came, or with rounds and rejected guesses.
   A model's output is shown as text alone, never as markup. */
"use strict";

import { colourOf, TARGET } from "./drafters.js";
import { show } from "./markdown.js";

const host = document.getElementById("output");
let view = "formatted";
let tokens = []; // {text, from, proposer, id, round}
let rounds = []; // [{first, end, tail, stats, rejected}]: tokens first ... end - 1 came from one verification step
let source = "";
let due = false; // a redrawing of the formatted view

export function clear() {
  tokens = [];
  rounds = [];
  source = "";
  redraw();
}

export function showAs(name) {
  view = name;
  redraw();
}

/* Add an event's tokens: what one round committed. */
export function add(event) {
  const round = { first: tokens.length, tail: "", stats: event.stats, rejected: event.rejected ?? [] };
  event.pieces.forEach((text, i) => {
    tokens.push({ text, from: source.length, proposer: event.proposers[i] || TARGET, id: event.tokens[i], round: event.stats.rounds });
    source += text;
  });
  if (!event.pieces.length) { // the incomplete last character of a cancelled answer
    round.tail = event.text;
    source += event.text;
  }
  round.end = tokens.length;
  rounds.push(round);
  if (view !== "formatted") keepingEnd(() => host.append(roundSpan(round, rounds.at(-2))));
  else if (!due) {
    due = true;
    requestAnimationFrame(draw);
  }
}

/* Draw at once what the next frame would draw. */
export function flush() {
  if (due) draw();
}

function redraw() {
  host.classList.toggle("formatted", view === "formatted");
  host.classList.toggle("guesses", view === "guesses");
  host.replaceChildren();
  host.blocks = [];
  if (view === "formatted") draw();
  else host.append(...rounds.map((round, i) => roundSpan(round, rounds[i - 1])));
}

function draw() {
  due = false;
  if (view === "formatted") keepingEnd(() => show(host, source, paint));
}

/* Keep the end in sight if it was. */
function keepingEnd(change) {
  const atEnd = host.scrollHeight - host.scrollTop - host.clientHeight < 40;
  change();
  if (atEnd) host.scrollTop = host.scrollHeight;
}

/* Make the spans of a part of the source, a token each. */
function paint(from, to) {
  const spans = [];
  for (let i = tokenAt(from); i < tokens.length && tokens[i].from < to; i += 1) {
    const { from: start, text } = tokens[i];
    const part = text.slice(Math.max(0, from - start), to - start);
    if (part) spans.push(tokenSpan(tokens[i], part));
  }
  const known = tokens.length ? tokens.at(-1).from + tokens.at(-1).text.length : 0;
  if (to > known) spans.push(source.slice(Math.max(from, known), to));
  return spans;
}

/* Find the token that the character stands in. */
function tokenAt(place) {
  let low = 0, high = tokens.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tokens[middle].from + tokens[middle].text.length > place) high = middle;
    else low = middle + 1;
  }
  return low;
}

function tokenSpan({ proposer, id, round }, text) {
  const span = spanOf(proposer === TARGET ? "" : `p${colourOf(proposer)}`);
  span.textContent = text;
  span.title = `${proposer === TARGET ? "the target itself" : `drafted by ${proposer}`} · token ${id} · round ${round}`;
  return span;
}

/* Make a round's span. Rejected guesses are in attributes: they are no part of the text, and are not copied with it. */
function roundSpan({ first, end, tail, stats, rejected }, before) {
  const span = spanOf("round"), mark = spanOf("right");
  const drafted = stats.drafted - (before?.stats.drafted ?? 0), right = stats.accepted - (before?.stats.accepted ?? 0);
  if (drafted > 0) mark.dataset.right = `${right}/${drafted}`;
  const last = first + tokens.slice(first, end).findLastIndex(({ text }) => text.trim()); // the mark is before a line break
  for (let i = first; i < end; i += 1) {
    for (const guess of rejected.filter(({ place }) => place === i - first)) span.append(wrongSpan(guess));
    if (i === last + 1) span.append(mark);
    if (tokens[i].text) span.append(tokenSpan(tokens[i], tokens[i].text));
  }
  if (last + 1 >= end) span.append(mark);
  span.append(tail);
  return span;
}

function spanOf(name) {
  return Object.assign(document.createElement("span"), { className: name });
}

function wrongSpan({ drafter, text }) {
  const span = spanOf(`wrong p${colourOf(drafter)}`);
  span.dataset.text = text.replaceAll("\n", "⏎") || "␀";
  span.title = `guessed by ${drafter}, and rejected`;
  return span;
}
