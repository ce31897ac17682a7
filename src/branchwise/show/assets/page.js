/* The page of one generation. Reads the compact object of page_data.py from #data, draws one step at a time. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const count = data.steps.length;
  const HOVER_MS = 140;
  const DIGITS = 10000;
  let now = -1;

  /* One step as step_json.py would give it. */
  function stepOf(number) {
    const packed = data.steps[number], path = new Set(packed.path), nodes = [];
    const token = (word) => ({id: data.words[word][0], text: data.words[word][1], cells: data.words[word][2]});
    const share = (list, node) => (node && list.length && list[node - 1] >= 0 ? list[node - 1] / DIGITS : null);
    packed.parents.forEach((parent, node) => {
      const source = node && packed.sources.length ? packed.sources[packed.sources.length === 1 ? 0 : node - 1] : -1;
      nodes.push(Object.assign(token(packed.words[node]), {
        parent: parent, depth: node ? nodes[parent].depth + 1 : 0, source: source < 0 ? null : data.sources[source],
        draft: share(packed.draft, node), target: share(packed.target, node), accepted: path.has(node),
      }));
    });
    const names = ["draft", "forward", "rule", "commit", "other"];
    return {
      nodes: nodes, path: packed.path, bonus: Object.assign(token(packed.bonus), {source: "target"}),
      emitted: packed.pieces.length, budget: data.budget, committed: packed.committed,
      ms: packed.ms ? Object.fromEntries(names.map((name, i) => [name, packed.ms[i]])) : null,
    };
  }

  /* The text: one span per step. */
  function fillText() {
    const text = at("text");
    if (data.prompt) {
      const prompt = document.createElement("span");
      prompt.className = "prompt";
      prompt.textContent = data.prompt;
      text.appendChild(prompt);
    }
    const runs = document.createElement("bdi");
    data.steps.forEach((step, number) => {
      const run = document.createElement("span"), last = step.pieces.length - 1;
      const hasBonus = step.pieces.length === step.path.length;
      run.className = "run";
      run.tabIndex = -1;
      run.setAttribute("role", "button");
      run.dataset.step = number;
      run.appendChild(document.createTextNode(step.pieces.slice(0, hasBonus ? last : last + 1).join("")));
      if (hasBonus) {
        const bonus = document.createElement("span");
        bonus.className = "bonus";
        bonus.textContent = step.pieces[last];
        run.appendChild(bonus);
      }
      run.setAttribute("aria-label", "step " + (number + 1) + ": " + run.textContent);
      runs.appendChild(run);
    });
    text.appendChild(runs);
    const stepAt = (event) => {
      const run = event.target.closest(".run");
      return run ? Number(run.dataset.step) : null;
    };
    let waiting = 0, place = "";
    text.addEventListener("pointerover", (event) => {
      const number = stepAt(event), here = event.clientX + " " + event.clientY;
      clearTimeout(waiting);
      // the text moved, not the pointer
      if (here === place) return;
      place = here;
      // a pointer that only crosses the text leaves the step as it is
      if (number !== null) waiting = setTimeout(() => go(number), HOVER_MS);
    });
    text.addEventListener("pointerleave", () => clearTimeout(waiting));
    // whoever presses something wants to be where that leads
    for (const name of ["keydown", "pointerdown"]) window.addEventListener(name, () => clearTimeout(waiting), true);
    for (const name of ["click", "focusin"])
      text.addEventListener(name, (event) => {
        const number = stepAt(event);
        if (number !== null) go(number);
      });
    return Array.from(runs.children);
  }

  /* The time line: a bar of tokens per step. One path for all bars: a generation may have thousands. */
  function fillLine() {
    const svg = at("bars"), most = Math.max(...data.steps.map((step) => step.pieces.length), 1);
    svg.setAttribute("viewBox", "0 0 " + count + " " + most);
    const gap = count > 300 ? 0 : 0.12;
    let accepted = "", bonus = "";
    data.steps.forEach((step, i) => {
      const tokens = step.pieces.length, drawn = tokens === step.path.length ? 1 : 0;
      const bar = (from, to) => "M" + (i + gap) + " " + (most - from) + "H" + (i + 1 - gap) + "V" + (most - to) + "H" + (i + gap) + "z";
      if (drawn) bonus += bar(0, 1);
      if (tokens > drawn) accepted += bar(drawn, tokens);
    });
    at("bar-accepted").setAttribute("d", accepted);
    at("bar-bonus").setAttribute("d", bonus);
    at("bar-now").setAttribute("height", most);
    at("most").textContent = "tokens per step, up to " + most;
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      go(Math.floor((event.clientX - box.left) / box.width * count));
    });
  }

  const plural = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");

  function sentence(step) {
    const parts = [plural(step.nodes.length, "node") + (step.budget === null ? "" : " of a budget of " + step.budget)];
    parts.push((step.path.length - 1) + " accepted", plural(step.emitted, "token") + " out of one forward");
    if (step.emitted < step.path.length) parts.push("the generation ended inside the path");
    if (step.ms) {
      const total = Object.values(step.ms).reduce((sum, part) => sum + part, 0);
      const shares = Object.entries(step.ms).map((part) => part[0] + " " + part[1].toFixed(1)).join(", ");
      parts.push(total.toFixed(1) + " ms (" + shares + ")");
    }
    return parts.join(" · ");
  }

  const HINT = "Point at a node, or focus the tree and press ↓, to see what its query sees: the committed tokens, its " +
    "ancestors and itself. Siblings stand for the same place in different texts, so no node may see a sibling: each is " +
    "scored exactly as if its path were the whole text. The rule keeps only what the target itself writes there, then " +
    "draws one more token from it, the bonus.";

  function tell(step, node) {
    if (node === null) {
      at("told").textContent = HINT;
      return;
    }
    if (node === step.nodes.length) {
      const last = step.nodes[step.path[step.path.length - 1]];
      at("told").textContent = "“" + step.bonus.text + "” is the bonus token: drawn from what the target says after “" + last.text +
        "”, the end of the accepted path. It needs no forward of its own now; it is the root of the next step.";
      return;
    }
    const entry = step.nodes[node], seen = BranchwiseTree.lineage(step, node);
    const siblings = step.nodes.filter((other, i) => i && i !== node && other.parent === entry.parent).length;
    const said = ["Node " + node + " “" + entry.text + "”" + (node ? "" : ", the root")];
    said.push("sees " + plural(step.committed, "committed token") + " and " + seen.size + " of " + plural(step.nodes.length, "node") +
      ": " + Array.from(seen).sort((a, b) => a - b).map((i) => "“" + step.nodes[i].text + "”").join(" "));
    if (siblings) said.push("not its " + plural(siblings, "sibling"));
    if (entry.source !== null) said.push("drafted by " + entry.source);
    if (entry.draft !== null) said.push("draft probability " + entry.draft);
    if (entry.target !== null) said.push("target probability " + entry.target);
    if (node) said.push(entry.accepted ? "accepted" : "rejected");
    at("told").textContent = said.join(" · ");
  }

  const runs = fillText();
  fillLine();
  BranchwiseTree.drawLegend(at("drafters"), data.sources);
  at("facts").append(...data.facts.map((fact) => {
    const item = document.createElement("span"), value = document.createElement("b");
    value.textContent = fact[1];
    item.append(fact[0] + " ", value);
    return item;
  }));

  function go(number) {
    number = Math.min(count - 1, Math.max(0, number));
    if (number === now) return;
    now = number;
    const step = stepOf(now);
    let mask = null;
    const tree = BranchwiseTree.drawTree(at("tree"), step, {onNode: (node) => { mask.select(node); tell(step, node); }});
    mask = BranchwiseTree.drawMask(at("mask"), step, {onNode: (node) => { tree.select(node); tell(step, node); }});
    at("tree").scrollTo({left: 0, top: 0, behavior: "instant"});
    tell(step, null);
    at("where").textContent = "step " + (now + 1) + " of " + count;
    at("sentence").textContent = sentence(step);
    const slider = at("slider");
    slider.value = now + 1;
    slider.setAttribute("aria-valuetext", "step " + (now + 1) + " of " + count + ", " + plural(step.emitted, "token"));
    at("bar-now").setAttribute("x", now);
    for (const id of ["first", "previous"]) at(id).disabled = now === 0;
    for (const id of ["last", "next"]) at(id).disabled = now === count - 1;
    const focused = document.activeElement && document.activeElement.classList.contains("run");
    runs.forEach((run, i) => {
      run.classList.toggle("now", i === now);
      run.classList.toggle("later", i > now);
      run.tabIndex = i === now ? 0 : -1;
      run.setAttribute("aria-current", i === now ? "step" : "false");
    });
    if (focused) runs[now].focus({preventScroll: true});
    const text = at("text"), run = runs[now];
    if (run.offsetTop < text.scrollTop || run.offsetTop + run.offsetHeight > text.scrollTop + text.clientHeight)
      text.scrollTop = run.offsetTop - text.clientHeight / 2;
  }

  const PAGE = 10;
  const KEYS = {
    ArrowLeft: () => now - 1, ArrowRight: () => now + 1, Home: () => 0, End: () => count - 1,
    PageUp: () => now - PAGE, PageDown: () => now + PAGE,
  };
  document.addEventListener("keydown", (event) => {
    // the slider has these keys of its own
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey || event.target === at("slider")) return;
    if (!Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    go(KEYS[event.key]());
  });
  at("first").addEventListener("click", () => go(0));
  at("previous").addEventListener("click", () => go(now - 1));
  at("next").addEventListener("click", () => go(now + 1));
  at("last").addEventListener("click", () => go(count - 1));
  at("slider").max = count;
  at("slider").addEventListener("input", () => go(Number(at("slider").value) - 1));
  at("fit").addEventListener("click", () => {
    const fitted = at("tree").classList.toggle("fitted");
    at("fit").setAttribute("aria-pressed", fitted);
  });
  window.branchwisePage = {go: go, stepOf: stepOf};
  go(data.first);
})();
