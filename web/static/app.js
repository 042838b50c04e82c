/* The page: sends the form's request, shows it as it comes, and after a reload takes it up again. */
"use strict";

import * as answer from "./answer.js";
import * as both from "./both.js";
import * as figures from "./figures.js";
import { keep, kept } from "./kept.js";
import { whenGiven } from "./key.js";
import { cancel, failure, follow, generate, streamOf } from "./requests.js";

const FIELDS = ["prompt", "mode", "max_tokens", "temperature", "top_p", "seed"];
const REASONS = { stop: "it is complete", length: "it reached its length", cancelled: "it was stopped", error: "it failed" };
const $ = (id) => document.getElementById(id);
const form = $("form").elements;

let run = null; // the request that runs or was the last: {id, offset, stats, ended, result, stopped}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(() => once(body()));
});
$("both-ways").addEventListener("click", () => begin(bothWays));
$("stop").addEventListener("click", stop);
$("view").addEventListener("change", (event) => {
  keep({ view: event.target.value });
  answer.showAs(event.target.value);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
addEventListener("pagehide", keepForm);
whenGiven(() => {
  $("error").hidden = true;
  say("Ready.");
  $("send").focus();
});
takeUp();

/* Do `work`, which runs requests, unless one is running. */
async function begin(work) {
  if (run && !run.ended) return;
  clear();
  keepForm();
  run = newRun();
  busy(true);
  say("Waiting for the first token …");
  $("answer").scrollIntoView({ block: "nearest" }); // on a phone it lies below the form
  try {
    await work();
  } catch (error) {
    fail(error);
  } finally {
    run.ended = true;
    busy(false);
  }
}

function newRun() {
  return { id: null, offset: 0, stats: null, ended: false, result: null, stopped: false };
}

/* Run and show one request. */
async function once(wanted) {
  const sentMs = performance.now();
  await follow(run, await generate(wanted), {
    begun: (id) => {
      keep({ id });
      if (run.stopped) cancelRun();
    },
    broken,
    tokens: (event) => {
      if (!event.offset) figures.firstToken((performance.now() - sentMs) / 1000);
      shown(event);
    },
  });
  showEnd();
}

/* Run the request with and without speculation, one after the other, with one seed, and compare. */
async function bothWays() {
  const wanted = { ...body(), seed: form.seed.value.trim() || drawnSeed() };
  await once({ ...wanted, speculation: { enabled: true, rejected: true } });
  const first = run;
  if (first.stopped || first.result.status !== "done") return;
  both.say("With speculation first: so it has learnt nothing from the other run.");
  both.showSpeeds(first, null);
  run = newRun();
  await follow(run, await generate({ ...wanted, speculation: false }), {
    begun: () => run.stopped && cancelRun(),
    broken,
    tokens: () => {
      both.showSpeeds(first, run);
      say(`Once more without speculation: ${run.offset} of ${first.offset} tokens …`);
    },
  });
  both.conclude(first, run);
  say(ending(first.result));
}

function drawnSeed() {
  return String(crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n);
}

/* Bring back the form and the request of before a reload, as long as its record lives. */
async function takeUp() {
  const { id, fields, view } = kept();
  for (const name of FIELDS) if (fields?.[name]) form[name].value = fields[name];
  if (fields) form.speculation.checked = "speculation" in fields;
  for (const choice of document.querySelectorAll("#view input")) if (choice.value === view) choice.checked = true;
  answer.showAs(document.querySelector("#view input:checked").value);
  if (!id) return;
  run = { ...newRun(), id };
  busy(true);
  say("Reading the last answer …");
  try {
    await follow(run, await streamOf(id, 0), { broken, tokens: shown });
    showEnd();
    if (run.result.timing.ttft_s !== null) figures.firstToken(run.result.timing.ttft_s);
  } catch (error) {
    if (error.status !== 404) return fail(error);
    keep({ id: null }); // its record has expired
    say("Ready.");
  } finally {
    run.ended = true;
    busy(false);
  }
}

function keepForm() {
  keep({ fields: Object.fromEntries(new FormData($("form"))) });
}

/* Leave empty fields to the server's defaults; send the seed as text, since numbers here end at 2^53. */
function body() {
  const found = { prompt: form.prompt.value, raw: form.mode.value === "raw" };
  found.speculation = form.speculation.checked && { enabled: true, rejected: true };
  for (const name of ["max_tokens", "temperature", "top_p"]) {
    if (form[name].validity.badInput) throw failure(name, `${name}: not a number`);
    if (form[name].value !== "") found[name] = Number(form[name].value);
  }
  if (form.seed.value.trim() !== "") found.seed = form.seed.value.trim();
  return found;
}

function shown(event) {
  if (!event.offset) say("Generating …");
  answer.add(event);
  figures.add(run, event);
}

function broken() {
  say("Connection lost, trying again …");
}

function showEnd() {
  const { result } = run;
  answer.flush();
  say(ending(result));
  if (result.status === "failed") fail(new Error(result.error || "The request failed."));
}

function ending({ finish_reason: reason, usage, timing }) {
  return `Finished: ${REASONS[reason]}, ${usage.completion_tokens} tokens in ${timing.total_s.toFixed(2)} s.`;
}

function stop() {
  if (!run || run.ended) return;
  run.stopped = true;
  say("Stopping …");
  if (run.id) cancelRun();
}

async function cancelRun() {
  try {
    await cancel(run.id);
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
  answer.clear();
  figures.clear();
  both.clear();
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
}

/* Mark the page busy: a screen reader then reads the log at the end, not token by token. */
function busy(on) {
  $("send").disabled = $("both-ways").disabled = on;
  $("stop").disabled = !on;
  $("output").setAttribute("aria-busy", String(on));
}

function say(text) {
  $("status").textContent = text;
}
