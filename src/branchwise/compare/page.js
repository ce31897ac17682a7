"use strict";
// Buttons that show one kind of verdict, and keys that go from claim to claim. The page is complete without.
(() => {
  const claims = [...document.querySelectorAll("#claims article")];
  const listed = [...document.querySelectorAll(".overview li")];
  const buttons = [...document.querySelectorAll("button[data-show]")];

  function show(kind) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.show === kind));
    for (const element of [...claims, ...listed]) {
      element.hidden = kind !== "all" && !element.classList.contains(kind);
    }
  }

  function step(by) {
    const shown = claims.filter((claim) => !claim.hidden);
    const focused = shown.findIndex((claim) => claim.contains(document.activeElement));
    // from outside: the first claim that is not above the window, or the last one above it
    const below = shown.findIndex((claim) => claim.getBoundingClientRect().top > 1);
    const from = focused >= 0 ? focused : by > 0 ? (below < 0 ? shown.length : below) - 1 : below < 0 ? shown.length : below;
    const next = shown[Math.max(0, Math.min(shown.length - 1, from + by))];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
  }

  for (const button of buttons) button.addEventListener("click", () => show(button.dataset.show));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
  });
  // a link to a claim that is filtered away shows all again
  addEventListener("hashchange", () => {
    const claim = document.getElementById(location.hash.slice(1));
    if (claim && claim.hidden) {
      show("all");
      claim.scrollIntoView();
    }
  });
})();
