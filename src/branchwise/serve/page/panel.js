// The steps of one turn: how fast its runs are, the tree of one step, and the time line to choose it. Knows no chat.

import { count, draw, make } from "./dom.js";
import { EXAMPLE } from "./example.js";
import { Speeds } from "./speeds.js";
import { Timeline } from "./timeline.js";

const REDRAW_MS = 80; // a person sees no more trees than this, and the model may need the processor
const SMALLEST = 0.58; // a tree shrinks so far to fit; then it is scrolled

export class Panel {
  /**
   * @param {Object<string, HTMLElement>} elements speeds, title, facts, tree, timeline, follow, legend
   * @param {{onCompare: Function, onShown: Function}} told of a wish to run the other kind; of the step that is shown
   */
  constructor(elements, { onCompare, onShown }) {
    this.elements = elements;
    this.onShown = onShown;
    this.speeds = new Speeds(elements.speeds, {
      onShow: (kind) => this.show(this.turn, kind),
      onCompare: (kind) => onCompare(this.turn, kind),
    });
    this.timeline = new Timeline(elements.timeline, (index) => this.pick(index));
    this.turn = null;
    this.kind = null;
    this.index = null; // null follows the latest step
    this.drawn = null;
    this.isFree = true; // nothing is running
    this.timer = null;
    this.nextDraw = 0;
    elements.follow.addEventListener("click", () => this.follow());
    new ResizeObserver(() => this.fit()).observe(elements.tree);
    this.refresh();
  }

  get run() {
    return this.turn?.runs[this.kind] ?? null;
  }

  /** Turns to a run; what is shown follows its latest step. */
  show(turn, kind) {
    this.turn = turn;
    this.kind = kind;
    this.index = null;
    this.drawn = null;
    this.timeline.show(this.run?.steps ?? []);
    this.refresh();
  }

  pick(index) {
    const steps = this.run?.steps.length ?? 0;
    if (!steps) return;
    this.index = Math.max(0, Math.min(index, steps - 1));
    this.refresh();
  }

  move(by) {
    this.pick((this.index ?? (this.run?.steps.length ?? 0) - 1) + by);
  }

  follow() {
    this.index = null;
    this.refresh();
  }

  /** Something has come: draws soon, and not more often than anybody can see. */
  changed() {
    if (this.timer !== null) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.nextDraw = performance.now() + REDRAW_MS;
      this.refresh();
    }, Math.max(0, this.nextDraw - performance.now()));
  }

  refresh() {
    const steps = this.run?.steps ?? [];
    this.timeline.update(steps);
    const index = steps.length ? (this.index ?? steps.length - 1) : null;
    const step = index === null ? null : steps[index];
    this.timeline.mark(index, step);
    this.elements.follow.setAttribute("aria-pressed", String(this.index === null));
    if (step !== this.drawn || step === null) this.drawStep(step, index);
    this.elements.title.textContent = step === null ? this.emptyTitle() : `Step ${index + 1} of ${steps.length}`;
    this.elements.title.classList.toggle("live", this.run?.state === "running" && this.index === null);
    this.speeds.update(this.turn?.runs ?? {}, this.kind, this.isFree);
  }

  emptyTitle() {
    if (this.run === null) return "What a step looks like";
    return this.run.isOver ? "No steps" : "Reading the prompt";
  }

  drawStep(step, index) {
    const { tree, facts } = this.elements;
    const hadFocus = tree.contains(document.activeElement);
    this.drawn = step;
    if (step === null) {
      tree.replaceChildren();
      facts.replaceChildren();
      if (this.run === null) this.drawExample();
    } else {
      window.BranchwiseTree.drawTree(tree, step);
      this.fit();
      facts.replaceChildren(...factsOf(step));
      if (hadFocus) tree.querySelector('[tabindex="0"]')?.focus();
    }
    this.drawLegend(this.run ? [...this.run.sources] : ["ngram", "recycling"]);
    this.onShown(this.turn, this.kind, index);
  }

  /** What there will be to see, before there is anything. */
  drawExample() {
    const { tree, facts } = this.elements;
    window.BranchwiseTree.drawTree(tree, EXAMPLE);
    this.fit();
    facts.replaceChildren("blue boxes were kept, dashed ones were not; letters tell who proposed a token");
  }

  /** Makes the tree as large as there is room for. */
  fit() {
    const svg = this.elements.tree.querySelector("svg");
    if (!svg) return;
    const { width, height } = svg.viewBox.baseVal, room = this.elements.tree;
    const scale = Math.max(SMALLEST, Math.min(1, room.clientWidth / width, room.clientHeight / height));
    svg.setAttribute("width", width * scale);
    svg.setAttribute("height", height * scale);
    const root = svg.querySelector(".bw-root .bw-box");
    room.scrollTop = root ? Number(root.getAttribute("y")) * scale - room.clientHeight / 2 : 0;
    room.scrollLeft = 0;
  }

  drawLegend(sources) {
    const wanted = sources.join("\n");
    if (this.legendOf === wanted) return;
    this.legendOf = wanted;
    window.BranchwiseTree.drawLegend(this.elements.legend, sources);
    const own = draw("svg", { class: "bw-svg", width: 22, height: 16, "aria-hidden": "true" },
      draw("rect", { class: "own-mark", x: 0.75, y: 0.75, width: 20.5, height: 14.5, rx: 7 }));
    const list = this.elements.legend.querySelector("ul");
    list.setAttribute("aria-label", "Who proposed a token");
    list.append(make("li", {}, own, "the model itself"));
  }
}

function factsOf(step) {
  const drafted = step.nodes.length - 1, accepted = step.path.length - 1;
  const said = drafted ? `${accepted} of ${count(drafted, "drafted node")} accepted` : "nothing drafted";
  const parts = Object.entries(step.ms).filter(([, ms]) => ms >= 0.05).map(([name, ms]) => `${name} ${ms.toFixed(1)}`);
  return [
    `${said}, ${count(step.emitted, "token")} in `,
    make("span", { title: parts.join(", ") + " ms" }, `${step.total.toFixed(1)} ms`),
  ];
}
