// The page: from a question to its runs, and from what goes wrong to what the person can do about it.

import { Failure, answer, key, model } from "./api.js";
import { Conversation, Turn } from "./conversation.js";
import { count, make } from "./dom.js";
import { Panel } from "./panel.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";

const EXAMPLES = [
  "Explain in five short steps how to bake bread, then repeat the steps as a numbered list.",
  "Write a Python function that sums a list, then explain it line by line.",
  "Count from one to thirty in words.",
];
const MODES = { trees: ["trees"], plain: ["plain"], both: ["trees", "plain"] };

const at = (id) => document.getElementById(id);
const settings = new Settings(at("settings"), at("open-settings"));
const conversation = new Conversation(at("turns"), (turn, step) => {
  panel.show(turn, turn.main);
  panel.pick(step);
});
const panel = new Panel(
  {
    speeds: at("speeds"), title: at("step-title"), facts: at("step-facts"), tree: at("tree"), timeline: at("timeline"),
    follow: at("follow"), legend: at("legend"),
  },
  {
    onCompare: (turn, kind) => decode(turn, [kind]),
    onShown: (turn, kind, step) => conversation.mark(turn, kind === turn?.main ? step : null),
  },
);
let turns = [];
let running = null; // AbortController of the request in progress

// asking and answering

function ask(question) {
  at("welcome").hidden = true;
  const turn = new Turn(question);
  turns.push(turn);
  conversation.add(turn);
  decode(turn, MODES[document.querySelector("#mode input:checked").value]);
}

/** What the model is to go on from: the system prompt, earlier turns that were answered, this question. */
function messagesOf(turn) {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const earlier of turns.slice(0, turns.indexOf(turn))) {
    if (!earlier.answer) continue;
    messages.push({ role: "user", content: earlier.question }, { role: "assistant", content: earlier.answer });
  }
  return [...messages, { role: "user", content: turn.question }];
}

/** Runs a turn in the given ways, one after the other, until one fails or is stopped. */
async function decode(turn, kinds) {
  if (running) return;
  running = new AbortController();
  showRunning();
  if (!Object.values(turn.runs).some((run) => run.state === "done")) {
    // the runs of one turn share prompt and settings: otherwise there is nothing to compare
    turn.main = kinds[0];
    turn.request = [`"messages":${JSON.stringify(messagesOf(turn))}`, ...settings.members()];
  }
  let failure = null;
  while (kinds.length && !failure && !running.signal.aborted) {
    failure = await decodeOnce(turn, kinds[0], running.signal);
    if (!failure) kinds = kinds.slice(1);
  }
  running = null;
  showRunning();
  if (failure) return explain(turn, kinds, failure);
  if (panel.turn === turn && panel.index === null) panel.show(turn, turn.main);
  announce(turn.runs[turn.main]);
}

/** One run; returns what went wrong, or null. */
async function decodeOnce(turn, kind, signal) {
  const run = new Run(kind), isMain = kind === turn.main;
  turn.runs[kind] = run;
  if (isMain) conversation.begin(turn);
  else conversation.complain(turn, null);
  if (panel.turn !== turn || panel.index === null || !panel.run) panel.show(turn, kind); // unless an old step is looked at
  const options = kind === "plain" ? { steps: true, budget: 1 } : { steps: true };
  const body = `{${[...turn.request, '"stream":true', `"branchwise":${JSON.stringify(options)}`].join(",")}}`;
  let failure = null;
  try {
    for await (const chunk of answer(body, signal)) {
      const step = run.take(chunk);
      if (step && isMain) conversation.append(turn, step);
      panel.changed();
    }
    run.state = "done";
  } catch (error) {
    run.state = error.name === "AbortError" ? "stopped" : "failed";
    if (run.state === "failed") failure = error instanceof Failure ? error : new Failure("server", `The page failed: ${error.message}`);
  }
  if (isMain) conversation.end(turn, run);
  panel.changed();
  return failure;
}

function stop() {
  running?.abort();
}

function newChat(question = "") {
  stop();
  conversation.clear();
  turns = [];
  panel.show(null, null);
  at("welcome").hidden = false;
  write(question);
}

// what goes wrong

/** Says what went wrong, and offers what can be done about it. */
function explain(turn, kinds, failure) {
  const retry = () => decode(turn, kinds);
  const afterKey = (given) => {
    if (!given) return;
    greet();
    retry();
  };
  if (failure.kind === "field" && settings.complain(failure.field, failure.message)) return takeBack(turn);
  if (failure.kind === "key") askForKey(failure.message).then(afterKey);
  if (failure.kind === "full") settings.complain(failure.field, failure.message);
  const remedies = {
    full: { "Start a new chat": () => newChat(turn.question), "Try again": retry },
    key: { "Enter a key": () => askForKey("").then(afterKey) },
  };
  conversation.complain(turn, failure.message, remedies[failure.kind] ?? { "Try again": retry });
}

/** The question goes back to where it was written: nothing of it has reached the model. */
function takeBack(turn) {
  turns = turns.filter((other) => other !== turn);
  conversation.remove(turn);
  panel.show(turns.at(-1) ?? null, turns.at(-1)?.main ?? null);
  at("welcome").hidden = turns.length > 0;
  if (!at("question").value) at("question").value = turn.question;
  grow();
}

/** Resolves to whether a key was given. */
function askForKey(message) {
  const dialog = at("key-dialog");
  at("key-error").textContent = message;
  at("key").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
  });
}

async function greet() {
  const label = at("model");
  try {
    const { name, longest } = await model();
    label.replaceChildren(name, make("small", {}, ` ${longest.toLocaleString("en")} tokens of context`));
    label.classList.remove("bad");
  } catch (failure) {
    if (failure.kind === "key") {
      const given = await askForKey(failure.message);
      if (given) return greet();
    }
    label.replaceChildren(failure.message, " ", make("button", { type: "button", onclick: greet }, "Try again"));
    label.classList.add("bad");
  }
}

// small things

function showRunning() {
  const isRunning = running !== null;
  at("send").hidden = isRunning;
  at("stop").hidden = !isRunning;
  panel.isFree = !isRunning;
  panel.changed();
}

function announce(run) {
  const speed = `${run.tokensPerSecond.toFixed(1)} tokens per second`;
  at("status").textContent = `${run.state === "stopped" ? "Stopped" : "Answered"}: ${count(run.tokens, "token")}, ${speed}`;
}

function write(question) {
  at("question").value = question;
  at("question").focus();
  grow();
}

/** The field is as high as what is written in it. */
function grow() {
  const field = at("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = at("question").value.trim();
  if (!question || running) return;
  write("");
  ask(question);
});
at("question").addEventListener("input", grow);
at("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("composer").requestSubmit();
});
at("stop").addEventListener("click", stop);
at("new-chat").addEventListener("click", () => newChat());
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(at("key").value.trim());
  at("key-dialog").close("given");
});
at("key-cancel").addEventListener("click", () => at("key-dialog").close(""));
at("key-dialog").addEventListener("cancel", () => at("key-dialog").close(""));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || at("key-dialog").open) return;
  if (event.key === "Escape") return stop();
  if (event.target.matches("input, textarea, select")) return;
  const moves = { ArrowLeft: () => panel.move(-1), ArrowRight: () => panel.move(1), Home: () => panel.pick(0), End: () => panel.follow() };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
});
for (const example of EXAMPLES) {
  const button = make("button", { type: "button", onclick: () => running || ask(example) }, example);
  at("examples").append(make("li", {}, button));
}
greet();
