/* One colour a drafter, the same on all pages and in each run: by its place in the deployment's list. */
"use strict";

export const TARGET = "target";
const COLOURS = 8; // .p0 ... .p7 in style.css, .k-0 ... .k-7 in dashboard.css: the same hues
const LIST = JSON.parse(document.body.dataset.drafters);

/* Return the number of a drafter's colour; one that is not in the list has it by its name, from those left over. */
export function colourOf(name) {
  const place = LIST.indexOf(name);
  if (place >= 0) return place % COLOURS;
  const hash = [...name].reduce((sum, letter) => (31 * sum + letter.codePointAt(0)) % 65521, 7);
  return COLOURS - 1 - (hash % Math.max(1, COLOURS - LIST.length));
}

/* Order names as the list has them, others behind it. */
export function byPlace(a, b) {
  const [first, second] = [a, b].map((name) => (LIST.includes(name) ? LIST.indexOf(name) : LIST.length));
  return first - second || a.localeCompare(b);
}
