/* The page: sends the form to /api/generate, shows the stream as it comes, resumes it when it breaks.
   A model's output is shown by textContent only, never as markup. */
"use strict";

import { keyed, whenGiven } from "./key.js";

const TARGET = "target";
const COLOURS = 7; // .p0 ... .p6 in style.css
const RECONNECTS = 20;
const RECONNECT_MS = 1000;
const $ = (id) => document.getElementById(id);

let run = null; // the request shown; late events of an older one are dropped

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!run || run.ended) start();
});
$("stop").addEventListener("click", stopRun);
whenGiven(() => {
  $("error").hidden = true;
  say("Ready.");
  $("send").focus();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});

async function start() {
  clear();
  run = { id: null, offset: 0, ended: false, stopped: false, sentMs: performance.now(), firstMs: null, counts: new Map() };
  const mine = run;
  busy(true);
  say("Waiting for the first token …");
  $("answer").scrollIntoView({ block: "nearest" }); // on a phone it lies below the form
  try {
    await read(mine, await post());
    for (let tries = 0; !mine.ended && mine.id; tries += 1) await resume(mine, tries);
    if (!mine.ended) throw new Error("The connection broke before the request was accepted.");
  } catch (error) {
    fail(error);
  } finally {
    mine.ended = true;
    busy(false);
  }
}

function post() {
  const body = JSON.stringify({ ...formBody(), stream: true });
  return request("/api/generate", { method: "POST", headers: { "Content-Type": "application/json" }, body });
}

/* Leave empty fields to the server's defaults; send the seed as text, since numbers here end at 2^53. */
function formBody() {
  const form = $("form").elements;
  const body = { prompt: form.prompt.value, raw: form.mode.value === "raw", speculation: form.speculation.checked };
  for (const name of ["max_tokens", "temperature", "top_p"]) {
    if (form[name].validity.badInput) throw fieldError(name, `${name}: not a number`);
    if (form[name].value !== "") body[name] = Number(form[name].value);
  }
  if (form.seed.value.trim() !== "") body.seed = form.seed.value.trim();
  return body;
}

async function request(url, options) {
  const response = await keyed(url, options);
  if (response.ok) return response;
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // not Paceline's JSON: a proxy on the way answered
  }
  if (!error) throw fieldError(null, `The server answered ${response.status}.`, true);
  throw fieldError(error.field, error.message, ![429, 503].includes(response.status));
}

/* Make an error; `answered`: the server refused, and a retry would not help. */
function fieldError(field, message, answered = false) {
  return Object.assign(new Error(message), { field, answered });
}

async function resume(mine, tries) {
  if (tries === RECONNECTS) throw new Error("The connection broke and could not be taken up again.");
  say("Connection lost, trying again …");
  await new Promise((wake) => setTimeout(wake, RECONNECT_MS));
  try {
    await read(mine, await request(`/api/requests/${encodeURIComponent(mine.id)}/stream?offset=${mine.offset}`));
  } catch (error) {
    if (error.answered) throw error;
  }
}

/* Read one response's events; return when the connection breaks, for resume() to go on. */
async function read(mine, response) {
  mine.id = mine.id || response.headers.get("X-Request-Id");
  if (mine.stopped) cancel(mine.id);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  while (!mine.ended) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch {
      return;
    }
    if (chunk.done) return;
    const blocks = (buffer + chunk.value).split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) take(mine, block);
  }
}

function take(mine, block) {
  let kind = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind === "tokens") showTokens(mine, JSON.parse(data));
  else if (kind === "end") showEnd(mine, JSON.parse(data));
  else if (kind === "error") throw fieldError(null, JSON.parse(data).error.message);
}

function showTokens(mine, event) {
  if (event.offset < mine.offset) return; // seen before the connection broke
  if (mine.firstMs === null) {
    mine.firstMs = performance.now() - mine.sentMs;
    $("ttft").textContent = mine.firstMs.toFixed(0);
    say("Generating …");
  }
  const output = $("output");
  const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
  const spans = document.createDocumentFragment();
  event.pieces.forEach((piece, i) => {
    const proposer = event.proposers[i] || TARGET;
    mine.counts.set(proposer, (mine.counts.get(proposer) || 0) + 1);
    if (piece) spans.append(tokenSpan(mine, piece, proposer, event.tokens[i]));
  });
  if (!event.pieces.length) spans.append(event.text); // the incomplete last character of a cancelled answer
  output.append(spans);
  if (atEnd) output.scrollTop = output.scrollHeight;
  mine.offset = event.offset + event.tokens.length;
  showLegend(mine);
  showNumbers(mine.offset, event.stats.rounds, event.stats.first_token_s, event.stats.last_token_s);
}

function tokenSpan(mine, piece, proposer, token) {
  const span = document.createElement("span");
  span.textContent = piece;
  span.title = proposer === TARGET ? `the target itself · token ${token}` : `drafted by ${proposer} · token ${token}`;
  const colour = colourOf(mine, proposer);
  if (colour) span.className = colour;
  return span;
}

/* Give drafters colours in the order in which they appear; the target has none. */
function colourOf(mine, proposer) {
  const drafters = [...mine.counts.keys()].filter((name) => name !== TARGET);
  return proposer === TARGET ? "" : `p${drafters.indexOf(proposer) % COLOURS}`;
}

function showLegend(mine) {
  const rows = [...mine.counts].map(([proposer, count]) => {
    const row = document.createElement("li");
    const swatch = document.createElement("span");
    const number = document.createElement("b");
    swatch.className = `swatch ${colourOf(mine, proposer)}`;
    number.textContent = count;
    row.append(swatch, proposer === TARGET ? "the target itself" : proposer, number);
    return row;
  });
  $("legend").replaceChildren(...rows);
}

function showNumbers(tokens, rounds, firstS, lastS) {
  $("count").textContent = tokens;
  if (rounds) $("accepted").textContent = (tokens / rounds).toFixed(2);
  if (lastS > firstS) $("speed").textContent = ((tokens - 1) / (lastS - firstS)).toFixed(1);
}

function showEnd(mine, result) {
  mine.ended = true;
  const tokens = result.usage.completion_tokens;
  const reasons = { stop: "it is complete", length: "it reached its length", cancelled: "it was stopped", error: "it failed" };
  say(`Finished: ${reasons[result.finish_reason]}, ${tokens} tokens in ${result.timing.total_s.toFixed(2)} s.`);
  if (result.status === "failed") fail(new Error(result.error || "The request failed."));
}

function stopRun() {
  if (!run || run.ended) return;
  run.stopped = true;
  say("Stopping …");
  if (run.id) cancel(run.id);
}

async function cancel(id) {
  try {
    await request(`/api/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  $("error").textContent = error.message;
  $("error").hidden = false;
  say("Failed.");
  const field = error.field && $(error.field.split(".")[0]);
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", "error");
  field.focus();
}

function clear() {
  $("error").hidden = true;
  $("output").replaceChildren();
  $("legend").replaceChildren();
  for (const id of ["accepted", "speed", "ttft", "count"]) $(id).textContent = "–";
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
}

/* Mark the page busy: a screen reader then reads the log at the end, not token by token. */
function busy(on) {
  $("send").disabled = on;
  $("stop").disabled = !on;
  $("output").setAttribute("aria-busy", String(on));
}

function say(text) {
  $("status").textContent = text;
}
