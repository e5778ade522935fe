/* The theme that was chosen, before anything is drawn: a module would come after the first white flash. */

try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing for pages has the system's theme.
}
