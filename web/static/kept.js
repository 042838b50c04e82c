/* What a reload brings back: the request shown and the form's fields, in this tab alone. */
"use strict";

const KEY = "paceline-request";

export function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) || {};
  } catch {
    return {}; // storage is forbidden here
  }
}

export function keep(changes) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ ...kept(), ...changes }));
  } catch {
    // forbidden, or full: a reload then begins anew
  }
}
