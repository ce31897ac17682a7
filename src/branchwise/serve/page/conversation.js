// The chat as it is read: questions, answers whose every token is tinted by its drafter, and what went wrong.

import { count, make, tint } from "./dom.js";
import { authors } from "./run.js";

const NEAR_END = 60; // pixels: who reads this close to the end follows it

/** One question and the runs that answer it. */
export class Turn {
  constructor(question, messages, members) {
    this.question = question;
    this.messages = messages; // of the request: system, earlier turns, this question
    this.members = members; // of the request: settings as JSON members, so that both runs have the same
    this.runs = {}; // by kind
    this.main = null; // kind of the run whose text is shown
    this.failure = null;
  }

  /** What later questions see of this turn. */
  get answer() {
    const run = this.runs[this.main];
    return run && (run.state === "done" || run.state === "stopped") ? run.text : "";
  }
}

export class Conversation {
  /**
   * @param {HTMLElement} list
   * @param {(turn: Turn, step: number) => void} onStep a token was clicked
   */
  constructor(list, onStep) {
    this.list = list;
    this.onStep = onStep;
    this.views = new Map();
    this.marked = null;
  }

  add(turn) {
    const text = make("div", { class: "text" });
    const facts = make("p", { class: "facts" });
    const answer = make("div", { class: "answer" }, text, facts);
    const view = make("article", { class: "turn", "aria-label": `Question ${this.views.size + 1}` },
      make("p", { class: "question" }, turn.question), answer);
    text.addEventListener("click", (event) => {
      const step = event.target.closest("[data-step]");
      if (step && getSelection().isCollapsed) this.onStep(turn, Number(step.dataset.step));
    });
    this.views.set(turn, { view, answer, text, facts, spans: [] });
    this.list.append(view);
    view.scrollIntoView({ block: "end" });
  }

  remove(turn) {
    this.views.get(turn)?.view.remove();
    this.views.delete(turn);
  }

  clear() {
    for (const turn of [...this.views.keys()]) this.remove(turn);
    this.marked = null;
  }

  /** The main run begins, perhaps anew. */
  begin(turn) {
    const { text, facts, answer, spans } = this.views.get(turn);
    text.replaceChildren();
    facts.replaceChildren();
    spans.length = 0;
    answer.setAttribute("aria-busy", "true");
    this.complain(turn, null);
  }

  /** One step's text at the end of the answer. */
  append(turn, step) {
    const { text, spans } = this.views.get(turn);
    const who = authors(step);
    const tokens = step.pieces.map((piece, index) => make("span", {
      class: `token ${tint(who[index])}`, title: `step ${step.number}: ${who[index] ?? "the model itself"}`,
    }, piece));
    const span = make("span", { class: "step", "data-step": String(spans.length) }, ...tokens);
    spans.push(span);
    this.follow(() => text.append(span));
  }

  /** The main run is over. */
  end(turn, run) {
    const { text, facts, answer } = this.views.get(turn);
    answer.setAttribute("aria-busy", "false");
    if (run.tail) text.append(run.tail);
    const endings = { stopped: "you stopped it", failed: "it broke off" };
    const end = endings[run.state] ?? (run.finish === "length" ? "the limit of new tokens is reached" : "");
    const said = run.steps.length ? `${count(run.tokens, "token")} in ${count(run.steps.length, "step")}` : "no tokens";
    this.follow(() => facts.replaceChildren(end ? `${said}; ${end}` : said));
  }

  /** What went wrong and what to do about it; null takes it away. `remedies`: label -> action. */
  complain(turn, message, remedies = {}) {
    const { view } = this.views.get(turn);
    view.querySelector(".failure")?.remove();
    if (message === null) return;
    const buttons = Object.entries(remedies).map(([label, onclick]) => make("button", { type: "button", onclick }, label));
    const box = make("div", { class: "failure", role: "alert" }, make("p", {}, message),
      make("div", { class: "buttons" }, ...buttons));
    this.follow(() => view.append(box));
  }

  /** Outlines the text that a step gave, and nothing else. */
  mark(turn, step) {
    this.marked?.classList.remove("here");
    this.marked = step === null ? null : (this.views.get(turn)?.spans[step] ?? null);
    this.marked?.classList.add("here");
  }

  follow(change) {
    const { list } = this;
    const isNear = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END;
    change();
    if (isNear) list.scrollTop = list.scrollHeight;
  }
}
