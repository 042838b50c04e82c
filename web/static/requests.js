/* Calls of the JSON API: errors with their field, and a request's events to its end, through broken connections. */
"use strict";

import { keyed } from "./key.js";

const RECONNECTS = 20;
const RECONNECT_MS = 1000;

export async function call(url, options) {
  const response = await keyed(url, options);
  if (response.ok) return response;
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // not Paceline's JSON: a proxy on the way answered
  }
  const { status } = response;
  if (!error) throw failure(null, `The server answered ${status}.`, { status, answered: true });
  throw failure(error.field, error.message, { status, answered: ![429, 503].includes(status) });
}

/* Make an error; `answered`: the server refused, and a retry would not help. */
export function failure(field, message, facts = {}) {
  return Object.assign(new Error(message), { field, ...facts });
}

export function generate(body) {
  const headers = { "Content-Type": "application/json" };
  return call("/api/generate", { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }) });
}

export function streamOf(id, offset) {
  return call(`/api/requests/${encodeURIComponent(id)}/stream?offset=${offset}`);
}

export function cancel(id) {
  return call(`/api/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/* Read a request's events to its end. `run`: {id, offset, ended}, kept up to date; `on.tokens` gets each event once,
   `on.begun` the request's id, `on.broken` is called before each new connection. */
export async function follow(run, response, on) {
  await read(run, response, on);
  for (let tries = 0; !run.ended && run.id; tries += 1) {
    if (tries === RECONNECTS) throw new Error("The connection broke and could not be taken up again.");
    on.broken();
    await new Promise((wake) => setTimeout(wake, RECONNECT_MS));
    try {
      await read(run, await streamOf(run.id, run.offset), on);
    } catch (error) {
      if (error.answered) throw error;
    }
  }
  if (!run.ended) throw new Error("The connection broke before the request was accepted.");
}

/* Read one response's events; return when the connection breaks. */
async function read(run, response, on) {
  if (!run.id) {
    run.id = response.headers.get("X-Request-Id");
    on.begun(run.id);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  while (!run.ended) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch {
      return;
    }
    if (chunk.done) return;
    const blocks = (buffer + chunk.value).split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) take(run, block, on);
  }
}

function take(run, block, on) {
  let kind = "";
  let text = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    if (line.startsWith("data: ")) text += line.slice(6);
  }
  if (!kind) return;
  const data = JSON.parse(text);
  if (kind === "error") throw failure(null, data.error.message, { answered: true });
  if (kind === "end") {
    run.ended = true;
    run.result = data;
  } else if (kind === "tokens" && data.offset >= run.offset) { // else: seen before the connection broke
    run.offset = data.offset + data.tokens.length;
    run.stats = data.stats;
    on.tokens(data);
  }
}

/* Return tokens a second behind the first, NaN if there is no second one. */
export function speedOf({ offset, stats }) {
  const took_s = stats ? stats.last_token_s - stats.first_token_s : 0;
  return took_s > 0 ? (offset - 1) / took_s : NaN;
}
