// The time line: a column per step, a cell per token, in the colour of the drafter that proposed it. Knows no run's text.

import { count, draw, tint } from "./dom.js";
import { authors } from "./run.js";

const COLUMN = 9, GAP = 2, CELL = 9; // pixels

export class Timeline {
  /**
   * @param {HTMLElement} element has the role slider
   * @param {(step: number) => void} onPick
   */
  constructor(element, onPick) {
    this.element = element;
    this.onPick = onPick;
    this.columns = [];
    this.steps = [];
    this.cell = CELL;
    this.cursor = draw("rect", { class: "cursor", y: 0, width: COLUMN, height: "100%", rx: 2 });
    this.svg = draw("svg", { "aria-hidden": "true" });
    element.append(this.svg);
    const pick = (event) => {
      const step = Math.floor((event.clientX - this.svg.getBoundingClientRect().left) / COLUMN);
      if (this.columns.length) onPick(Math.max(0, Math.min(step, this.columns.length - 1)));
    };
    element.addEventListener("click", pick);
    new ResizeObserver(() => element.clientHeight === this.height || this.show(this.steps)).observe(element);
    element.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" && event.buttons === 1) pick(event);
    });
  }

  /** Shows another run's steps. */
  show(steps) {
    this.columns = [];
    this.steps = steps;
    this.height = this.element.clientHeight;
    this.cell = Math.min(CELL, this.height / Math.max(1, ...steps.map((step) => step.emitted)));
    this.svg.replaceChildren(this.cursor);
    steps.forEach((step) => this.append(step));
    this.resize();
  }

  /** Shows those of a run's steps that are new. */
  update(steps) {
    const fresh = steps.slice(this.columns.length);
    if (!fresh.length) return;
    if (fresh.some((step) => step.emitted * this.cell > this.height)) return this.show(steps);
    fresh.forEach((step) => this.append(step));
    this.resize();
  }

  append(step) {
    const x = this.columns.length * COLUMN;
    const cells = authors(step).map((source, at) => draw("rect", {
      class: `cell ${tint(source)}`, x: x + GAP / 2, y: this.height - (at + 1) * this.cell, width: COLUMN - GAP,
      height: Math.max(1, this.cell - 1), rx: 1.5,
    }));
    const column = draw("g", {}, ...cells);
    this.columns.push(column);
    this.svg.append(column);
  }

  resize() {
    this.svg.setAttribute("width", this.columns.length * COLUMN);
    this.element.setAttribute("aria-valuemax", this.columns.length);
    this.element.setAttribute("aria-valuemin", this.columns.length ? 1 : 0);
  }

  /** Moves the cursor; null where there is no step. */
  mark(index, step) {
    this.cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    this.element.setAttribute("aria-valuenow", index === null ? 0 : index + 1);
    this.element.setAttribute("aria-valuetext", index === null ? "no steps yet" : describe(index, this.columns.length, step));
    if (index === null) return;
    this.cursor.setAttribute("x", index * COLUMN);
    const left = index * COLUMN, view = this.element;
    if (left < view.scrollLeft) view.scrollLeft = left - COLUMN;
    else if (left + 2 * COLUMN > view.scrollLeft + view.clientWidth) view.scrollLeft = left + 2 * COLUMN - view.clientWidth;
  }
}

function describe(index, steps, step) {
  return `step ${index + 1} of ${steps}: ${count(step.nodes.length, "node")}, ${step.path.length - 1} accepted, ` +
    count(step.emitted, "token");
}
