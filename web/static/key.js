/* The API key, on servers that need one: kept for this tab alone, sent as a header, never in a URL. */
"use strict";

const KEPT = "paceline-key";
const form = document.getElementById("key-form"); // absent where no key is needed
let key = "";
try {
  key = sessionStorage.getItem(KEPT) || "";
} catch {
  // storage is forbidden here: the key holds until the page is left
}

/* Call fetch() with the key; if it is refused, focus its field. */
export async function keyed(url, options = {}) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(url, { ...options, headers });
  if (form) mark(response.status === 401);
  return response;
}

/* Call `then` each time a key has been entered. */
export function whenGiven(then) {
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = document.getElementById("key");
    key = field.value.trim();
    field.value = "";
    try {
      sessionStorage.setItem(KEPT, key);
    } catch {
      // as above
    }
    mark(false);
    then();
  });
}

function mark(refused) {
  const field = document.getElementById("key");
  const was = field.hasAttribute("aria-invalid");
  if (refused) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  field.placeholder = !refused && key ? "in use" : "";
  if (refused && !was) field.focus();
}
