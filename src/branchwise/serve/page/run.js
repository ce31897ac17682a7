// One run: a prompt's answer as it comes, step by step, and what it cost. Knows the chunks of the stream; knows no page.

/** A run of one prompt, with trees or plain. */
export class Run {
  /** @param {"trees"|"plain"} kind */
  constructor(kind) {
    this.kind = kind;
    /** @type {"waiting"|"running"|"done"|"stopped"|"failed"} */
    this.state = "waiting";
    this.steps = [];
    this.tail = ""; // text that no step has shown: it was held back until the end
    this.finish = null;
    this.tokens = 0;
    this.nodes = 0;
    this.milliseconds = 0; // of all steps; reading the prompt is not among them
    /** Drafters that proposed anything, in the order of their first node. */
    this.sources = new Set();
  }

  /** Takes one chunk of the stream; returns the step it tells of, if any. */
  take(chunk) {
    this.state = "running";
    const choice = chunk.choices[0];
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    const step = chunk.branchwise?.step;
    if (!step) {
      this.tail += choice?.delta.content ?? "";
      return null;
    }
    step.total = Object.values(step.ms).reduce((sum, part) => sum + part, 0);
    this.steps.push(step);
    this.tokens += step.emitted;
    this.nodes += step.nodes.length;
    for (const node of step.nodes) if (node.source) this.sources.add(node.source);
    this.milliseconds += step.total;
    return step;
  }

  get text() {
    return this.steps.map((step) => step.pieces.join("")).join("") + this.tail;
  }

  get isOver() {
    return this.state === "done" || this.state === "stopped" || this.state === "failed";
  }

  get tokensPerSecond() {
    return this.milliseconds ? (1000 * this.tokens) / this.milliseconds : 0;
  }

  get tokensPerStep() {
    return this.steps.length ? this.tokens / this.steps.length : 0;
  }
}

/** Who proposed each emitted token of a step: a drafter's name, or null for the model itself. */
export function authors(step) {
  const drafted = step.path.slice(1).map((node) => step.nodes[node].source);
  return [...drafted, null].slice(0, step.emitted);
}

/** How the two runs of one prompt compare: `null` until both have ended well. */
export function comparison(trees, plain) {
  if (trees?.state !== "done" || plain?.state !== "done" || !plain.tokensPerSecond) return null;
  const one = trees.text, other = plain.text;
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  return { ratio: trees.tokensPerSecond / plain.tokensPerSecond, isSame: one === other, sameCharacters: same };
}
