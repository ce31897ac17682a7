// How fast a turn's runs are, side by side, and how they compare. Its rows stay: they may be under somebody's pointer.

import { count, make } from "./dom.js";
import { comparison } from "./run.js";

const KINDS = { trees: "Trees", plain: "Plain" };
const WISHES = { trees: "Run it with trees, to compare", plain: "Run it plain, to compare" };

export class Speeds {
  /**
   * @param {HTMLElement} element
   * @param {{onShow: Function, onCompare: Function}} told of the kind of run to show, or to run
   */
  constructor(element, { onShow, onCompare }) {
    this.rows = {};
    for (const kind of Object.keys(KINDS)) this.rows[kind] = row(kind, () => onShow(kind));
    this.wish = make("button", { type: "button", class: "compare", hidden: true, onclick: () => onCompare(this.missing) });
    this.verdict = make("p", { class: "verdict" });
    element.append(...Object.values(this.rows).map((one) => one.button), this.wish, this.verdict);
  }

  /**
   * @param {Object<string, Run>} runs by kind
   * @param {string|null} shown kind of the run whose steps are shown
   * @param {boolean} isFree whether another run may begin
   */
  update(runs, shown, isFree) {
    const fastest = Math.max(1e-9, ...Object.values(runs).map((run) => run.tokensPerSecond));
    for (const [kind, one] of Object.entries(this.rows)) {
      const run = runs[kind];
      one.button.hidden = !run;
      if (!run) continue;
      one.button.setAttribute("aria-pressed", String(kind === shown));
      one.bar.style.inlineSize = `${(100 * run.tokensPerSecond) / fastest}%`;
      one.speed.textContent = run.steps.length ? run.tokensPerSecond.toFixed(1) : "–";
      one.perStep.textContent = run.steps.length ? run.tokensPerStep.toFixed(2) : "–";
    }
    this.missing = runs.trees ? "plain" : "trees";
    const only = Object.values(runs).length === 1 ? Object.values(runs)[0] : null;
    this.wish.hidden = !(isFree && only?.state === "done");
    this.wish.textContent = WISHES[this.missing];
    this.verdict.replaceChildren(...judge(runs));
  }
}

function row(kind, onclick) {
  const bar = make("span", { class: `bar ${kind}` }), speed = make("strong"), perStep = make("strong");
  const button = make("button", { type: "button", class: "speed", "data-kind": kind, hidden: true, onclick,
    title: "Show the steps of this run" },
  make("span", { class: "name" }, KINDS[kind]), make("span", { class: "track" }, bar),
  make("span", { class: "figure" }, speed, " tokens/s"), make("span", { class: "figure" }, perStep, " per step"));
  return { button, bar, speed, perStep };
}

function judge(runs) {
  if (!runs.trees && !runs.plain) return ["Speeds appear with the first answer."];
  const found = comparison(runs.trees, runs.plain);
  if (!found) return [];
  const text = found.isSame
    ? "same text"
    : `texts part after ${count(found.sameCharacters, "character")}, where rounding decided between near-equal tokens`;
  return [make("strong", {}, `${found.ratio.toFixed(2)}×`), ` as fast as plain decoding, ${text}`];
}
