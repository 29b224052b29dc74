// @ts-check
// Light or dark: the attribute data-theme of the root element; without it the system decides.

/** @param {"auto" | "light" | "dark"} theme */
export function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/**
 * Call when the system changes between light and dark.
 * @param {() => void} listener
 */
export function onSystemTheme(listener) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}
