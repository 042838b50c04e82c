/* The theme, light, dark or the system's: kept in this browser, set before the first paint, changed by a button. */
"use strict";

const KEY = "paceline-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

function chosen() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept in NEXT ? kept : "system";
  } catch {
    return "system"; // storage is forbidden here
  }
}

function show(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (!button) return;
  button.textContent = SIGNS[theme];
  button.setAttribute("aria-label", `Theme: ${theme}. Change to ${NEXT[theme]}`);
  button.title = `Theme: ${theme}`;
}

show(chosen());
document.addEventListener("DOMContentLoaded", () => {
  show(chosen());
  document.getElementById("theme").addEventListener("click", () => {
    const theme = NEXT[chosen()];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // not kept then: it holds until the page is left
    }
    show(theme);
  });
});
