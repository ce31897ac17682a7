/* Draws one step of tree speculation as SVG. Self-contained; one global, BranchwiseTree:

     BranchwiseTree.drawTree(element, step, {onNode})  -> {svg, select(node or null)}
     BranchwiseTree.drawMask(element, step, {onNode})  -> {svg, select(node or null)}
     BranchwiseTree.drawLegend(element, sources)       list of drafters' marks; sources: array of names
     BranchwiseTree.describe(step) -> string           the step in one line
     BranchwiseTree.layout(step), BranchwiseTree.badge(source), BranchwiseTree.lineage(step, node)

   ``step`` is an object of step_json.py; what the element held before is replaced. The element wants the class "bw", and
   the page wants tree.css. Every text goes in as text, never as markup. ``onNode`` is called with the number of the node
   under the pointer or the keyboard focus, and with null when there is none; ``select`` shows a node's ancestors, which
   is all that it sees.

   Keyboard: the tree is one tab stop. Up and Down go through its nodes, depth first. Left, Right, Home and End are left
   to the page.

   Places are those of layout.py; looks are those of looks.py and tree.css. */
"use strict";
(function () {
  const SVG = "http://www.w3.org/2000/svg";
  const CELL_WIDTH = 7.9, MARGIN = 16, COLUMN_GAP = 34, ROW_GAP = 9, BOX_HEIGHT = 42, LOW_BOX_HEIGHT = 28;
  const BOX_PADDING = 9, BADGE_WIDTH = 24, LEAST_WIDTH = 128, LOW_LEAST_WIDTH = 58, MOST_CELLS = 18;
  const MONO = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace";
  const SANS = "system-ui,'DejaVu Sans',sans-serif";
  const SLOTS = 8;
  const KNOWN = {
    ngram: [0, "NG"], recycling: [1, "RE"], suffix: [2, "SU"], model: [3, "MO"],
    eagle: [4, "EA"], medusa: [5, "ME"], block: [6, "BL"], early_exit: [7, "EX"],
  };

  function badge(source) {
    if (Object.hasOwn(KNOWN, source)) return {slot: KNOWN[source][0], letters: KNOWN[source][1]};
    let sum = 0;
    for (const letter of source) sum += letter.codePointAt(0);
    return {slot: sum % SLOTS, letters: Array.from(source).slice(0, 2).join("").toUpperCase()};
  }

  function childrenOf(step) {
    const children = step.nodes.map(() => []), lit = step.path.slice(1);
    for (let node = 1; node < step.nodes.length; node++) children[step.nodes[node].parent].push(node);
    if (step.bonus) {
      children.push([]);
      lit.push(step.nodes.length);
    }
    lit.forEach((child, i) => {
      const parent = step.path[i];
      children[parent] = [child].concat(children[parent].filter((other) => other !== child));
    });
    return children;
  }

  function depthFirst(children) {
    const order = [], stack = [0];
    while (stack.length) {
      const node = stack.pop();
      order.push(node);
      for (let i = children[node].length - 1; i >= 0; i--) stack.push(children[node][i]);
    }
    return order;
  }

  function hasProbabilities(step) {
    return step.nodes.some((node) => node.draft !== null || node.target !== null);
  }

  function layout(step) {
    const tokens = step.nodes.slice(), depth = tokens.map((node) => node.depth);
    if (step.bonus) {
      depth.push(depth[step.path[step.path.length - 1]] + 1);
      tokens.push(step.bonus);
    }
    const height = hasProbabilities(step) ? BOX_HEIGHT : LOW_BOX_HEIGHT;
    const least = height === BOX_HEIGHT ? LEAST_WIDTH : LOW_LEAST_WIDTH;
    const children = childrenOf(step), order = depthFirst(children);
    const rows = children.map(() => 0);
    let row = 0;
    for (const node of order) if (!children[node].length) rows[node] = row++;
    for (const node of order.slice().reverse()) {
      if (children[node].length) rows[node] = rows[children[node][0]];
    }
    const widths = [];
    tokens.forEach((token, node) => {
      const label = Math.min(token.cells, MOST_CELLS) * CELL_WIDTH + 2 * BOX_PADDING + BADGE_WIDTH;
      widths[depth[node]] = Math.max(widths[depth[node]] || 0, least, label);
    });
    const left = [MARGIN];
    for (const width of widths) left.push(left[left.length - 1] + width + COLUMN_GAP);
    const boxes = tokens.map((token, node) => ({
      x: left[depth[node]], y: MARGIN + rows[node] * (height + ROW_GAP), width: widths[depth[node]], height: height,
    }));
    return {
      boxes: boxes, order: order, width: left[left.length - 1] - COLUMN_GAP + MARGIN,
      height: MARGIN + row * (height + ROW_GAP) - ROW_GAP + MARGIN,
    };
  }

  function describe(step) {
    const heading = step.nodes.length + (step.nodes.length === 1 ? " node" : " nodes");
    if (!step.bonus) return "Token tree of " + heading;
    return "Draft tree of " + heading + ", " + (step.path.length - 1) + " accepted, bonus token " + step.bonus.text;
  }

  function kindOf(step, node) {
    if (node === step.nodes.length) return "bonus";
    if (!step.path.length) return "plain";
    return node === 0 ? "root" : step.nodes[node].accepted ? "accepted" : "rejected";
  }

  function titleOf(step, node) {
    const kind = kindOf(step, node), entry = kind === "bonus" ? step.bonus : step.nodes[node];
    const names = {plain: "node", root: "root: the last committed token", bonus: "bonus token, drawn from the target"};
    const said = [entry.text + " (token " + entry.id + ")", names[kind] || kind];
    if (kind !== "bonus" && entry.source !== null) said.push("drafted by " + entry.source);
    for (const name of ["draft", "target"])
      if (kind !== "bonus" && entry[name] !== null) said.push(name + " probability " + entry[name]);
    return said.join(", ");
  }

  function parentsOf(step, node) {
    if (node === 0) return [];
    if (node === step.nodes.length) return [step.path[step.path.length - 1]];
    return step.nodes[node].parents || [step.nodes[node].parent];
  }

  /* The node and all of its ancestors. */
  function lineage(step, node) {
    const seen = new Set(), stack = [node];
    while (stack.length) {
      const here = stack.pop();
      if (seen.has(here)) continue;
      seen.add(here);
      stack.push(...parentsOf(step, here));
    }
    return seen;
  }

  function make(name, attributes, parent, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  function canvas(element, width, height, attributes) {
    const svg = make("svg", Object.assign({
      class: "bw-svg bw", width: width, height: height, viewBox: "0 0 " + width + " " + height,
    }, attributes));
    make("rect", {class: "bw-back", width: width, height: height, rx: 10}, svg);
    // events are heard by a frame of its own: Chromium puts an svg that listens for the focus among the tab stops
    const frame = document.createElement("div");
    frame.appendChild(svg);
    element.replaceChildren(frame);
    return svg;
  }

  function write(parent, name, x, y, text, size, family, anchor, weight) {
    const attributes = {
      class: name, x: x, y: y, "font-size": size, "font-family": family, "text-anchor": anchor, direction: "ltr",
      "unicode-bidi": "isolate",
    };
    if (weight) attributes["font-weight"] = weight;
    return make("text", attributes, parent, text);
  }

  function shortened(text, cells, most) {
    if (cells <= most) return text;
    // wide characters count two cells, as in Python; here the mean has to do
    const letters = Array.from(text), kept = Math.max(1, Math.floor((most - 1) * letters.length / cells));
    return letters.slice(0, kept).join("") + "…";
  }

  function curve(parent, child) {
    const x1 = parent.x + parent.width, x2 = child.x, bend = COLUMN_GAP / 2;
    const y1 = parent.y + parent.height / 2, y2 = child.y + child.height / 2;
    if (y1 === y2) return "M" + x1 + " " + y1 + "H" + x2;
    return "M" + x1 + " " + y1 + "C" + (x1 + bend) + " " + y1 + " " + (x2 - bend) + " " + y2 + " " + x2 + " " + y2;
  }

  function drawEdges(svg, step, boxes) {
    let thin = "", thick = "";
    boxes.forEach((box, node) => {
      const lit = kindOf(step, node) === "accepted" || kindOf(step, node) === "bonus";
      for (const parent of parentsOf(step, node)) {
        if (lit) thick += curve(boxes[parent], box);
        else thin += curve(boxes[parent], box);
      }
    });
    if (thin) make("path", {class: "bw-edge", d: thin, fill: "none", "stroke-width": 1.5}, svg);
    if (thick) make("path", {class: "bw-edge-lit", d: thick, fill: "none", "stroke-width": 3.5}, svg);
  }

  function factsOf(entry, node, kind) {
    if (kind === "bonus") return ["bonus token"];
    if (node === 0) return ["root"];
    return ["draft", "target"].filter((name) => entry[name] !== null)
      .map((name) => name + " " + entry[name].toFixed(2));
  }

  function drawBox(svg, step, node, box, twoLines) {
    const kind = kindOf(step, node), entry = kind === "bonus" ? step.bonus : step.nodes[node];
    const strong = kind === "root" || kind === "accepted" || kind === "bonus";
    const group = make("g", {
      class: "bw-node bw-" + kind, role: "treeitem", tabindex: -1, "aria-label": titleOf(step, node),
      "aria-level": (kind === "bonus" ? step.nodes[step.path[step.path.length - 1]].depth + 1 : entry.depth) + 1,
      "data-node": node,
    }, svg);
    make("title", {}, group, titleOf(step, node));
    const border = {class: "bw-box", x: box.x, y: box.y, width: box.width, height: box.height};
    border.rx = kind === "bonus" ? box.height / 2 : 7;
    border["stroke-width"] = strong ? 2.5 : 1.2;
    if (kind === "rejected") border["stroke-dasharray"] = "4 3";
    make("rect", border, group);
    const edge = BOX_PADDING + (kind === "bonus" ? box.height / 4 : 0);
    let indent = edge;
    if (kind !== "bonus" && entry.source !== null) {
      const mark = badge(entry.source), width = BADGE_WIDTH - 3, x = box.x + 5, y = box.y + 5;
      make("rect", {class: "bw-badge bw-s" + mark.slot, x: x, y: y, width: width, height: 16, rx: 4}, group);
      write(group, "bw-letters bw-i" + mark.slot, x + width / 2, y + 11.5, mark.letters, 9.5, SANS, "middle");
      indent = BADGE_WIDTH + BOX_PADDING;
    }
    const label = shortened(entry.text, entry.cells, MOST_CELLS);
    write(group, "bw-word", box.x + indent, box.y + 18, label, 13, MONO, "start", strong ? "bold" : "");
    const facts = twoLines ? factsOf(entry, node, kind) : [], below = box.y + box.height - 8;
    if (facts.length) write(group, "bw-small", box.x + edge, below, facts[0], 10, SANS, "start");
    if (facts.length > 1)
      write(group, "bw-small", box.x + box.width - BOX_PADDING, below, facts[1], 10, SANS, "end");
    return group;
  }

  function drawTree(element, step, options) {
    const told = (options && options.onNode) || function () {};
    const place = layout(step);
    const svg = canvas(element, place.width, place.height, {role: "tree", "aria-label": describe(step)});
    drawEdges(svg, step, place.boxes);
    const twoLines = hasProbabilities(step);
    // in depth-first order, so that a screen reader reads the tree as it is drawn
    const groups = [];
    for (const node of place.order) groups[node] = drawBox(svg, step, node, place.boxes[node], twoLines);
    groups[0].setAttribute("tabindex", 0);

    function select(node) {
      svg.classList.toggle("bw-asking", node !== null);
      const seen = node === null ? new Set() : lineage(step, node);
      groups.forEach((group, here) => group.classList.toggle("bw-sees", seen.has(here)));
    }
    const nodeAt = (event) => {
      const group = event.target.closest && event.target.closest(".bw-node");
      return group ? Number(group.dataset.node) : null;
    };
    let shown = null;
    const show = (node) => {
      if (node === shown) return;
      shown = node;
      select(node);
      told(node);
    };
    const frame = svg.parentNode;
    frame.addEventListener("pointerover", (event) => show(nodeAt(event)));
    frame.addEventListener("pointerleave", () => show(null));
    frame.addEventListener("focusin", (event) => {
      const node = nodeAt(event);
      if (node === null) return;
      groups.forEach((group, here) => group.setAttribute("tabindex", here === node ? 0 : -1));
      // browsers do not do this for a part of an svg
      groups[node].scrollIntoView({block: "nearest", inline: "nearest", behavior: "instant"});
      show(node);
    });
    frame.addEventListener("focusout", () => show(null));
    frame.addEventListener("keydown", (event) => {
      const node = nodeAt(event), move = {ArrowUp: -1, ArrowDown: 1}[event.key];
      if (node === null || move === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      const next = place.order[place.order.indexOf(node) + move];
      event.preventDefault();
      if (next !== undefined) groups[next].focus();
    });
    return {svg: svg, select: select};
  }

  function maskGrid(nodes, committed) {
    const cell = nodes <= 12 ? 22 : nodes <= 34 ? 13 : nodes <= 80 ? 9 : 4;
    const left = cell >= 13 ? 104 : 18, top = 34, wide = committed === null ? 0 : 62, start = left + wide;
    return {
      cell: cell, left: left, top: top, wide: wide, start: start,
      width: start + nodes * cell + 14, height: top + nodes * cell + 14,
    };
  }

  function drawMask(element, step, options) {
    const told = (options && options.onNode) || function () {};
    const nodes = step.nodes.length, grid = maskGrid(nodes, step.committed), cell = grid.cell;
    const svg = canvas(element, grid.width, grid.height, {
      role: "img", "aria-label": "Attention mask, " + nodes + " queries by " + nodes + " keys of the tree" +
        (step.committed === null ? "" : " and " + step.committed + " committed keys"),
    });
    const bottom = grid.top + nodes * cell, right = grid.start + nodes * cell;
    make("rect", {class: "bw-grid", x: grid.left, y: grid.top, width: right - grid.left, height: bottom - grid.top}, svg);
    if (cell >= 9) {
      let lines = "";
      for (let i = 0; i < nodes; i++)
        lines += "M" + (grid.start + i * cell) + " " + grid.top + "V" + bottom +
          "M" + grid.start + " " + (grid.top + i * cell) + "H" + right;
      make("path", {class: "bw-gridline", d: lines, fill: "none", "stroke-width": 0.5}, svg);
    }
    if (step.committed !== null) {
      const middle = grid.left + grid.wide / 2;
      make("rect", {
        class: "bw-committed", x: grid.left + 1, y: grid.top + 1, width: grid.wide - 2, height: bottom - grid.top - 2,
      }, svg);
      write(svg, "bw-small", middle, grid.top - 18, String(step.committed), 10, SANS, "middle");
      write(svg, "bw-small", middle, grid.top - 6, "committed", 10, SANS, "middle");
    }
    // one path for all squares of a kind: a tree of 256 nodes has thousands
    const side = cell > 4 ? cell - 2 : 3;
    const square = (key, query) =>
      "M" + (grid.start + key * cell + 1) + " " + (grid.top + query * cell + 1) + "h" + side + "v" + side + "h-" + side + "z";
    let seen = "", self = "";
    for (let query = 0; query < nodes; query++)
      for (const key of lineage(step, query)) {
        if (key === query) self += square(key, query);
        else seen += square(key, query);
      }
    make("path", {class: "bw-seen", d: seen}, svg);
    make("path", {class: "bw-self", d: self}, svg);
    if (cell >= 13)
      for (let query = 0; query < nodes; query++) {
        const middle = grid.top + (query + 0.5) * cell + 3.5, entry = step.nodes[query];
        write(svg, "bw-small", grid.left - 6, middle, String(query), 9, SANS, "end");
        write(svg, "bw-word", grid.left - 24, middle, shortened(entry.text, entry.cells, 11), cell < 20 ? 9.5 : 11, MONO, "end");
        write(svg, "bw-small", grid.start + (query + 0.5) * cell, grid.top - 6, String(query), cell < 20 ? 8.5 : 10, SANS, "middle");
      }
    const frame = make("rect", {class: "bw-row", x: grid.left, width: right - grid.left, height: cell}, svg);
    function select(node) {
      const shown = node !== null && node < nodes;
      frame.classList.toggle("bw-asked", shown);
      if (shown) frame.setAttribute("y", grid.top + node * cell);
    }
    let asked = null;
    const show = (node) => {
      if (node === asked) return;
      asked = node;
      select(node);
      told(node);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), scale = grid.height / box.height;
      const row = Math.floor(((event.clientY - box.top) * scale - grid.top) / cell);
      show(row >= 0 && row < nodes ? row : null);
    });
    svg.addEventListener("pointerleave", () => show(null));
    return {svg: svg, select: select};
  }

  function drawLegend(element, sources) {
    const list = document.createElement("ul");
    list.className = "bw-legend bw";
    for (const source of sources) {
      const mark = badge(source), item = document.createElement("li");
      const svg = make("svg", {class: "bw-svg", width: 22, height: 16, "aria-hidden": "true"}, item);
      make("rect", {class: "bw-badge bw-s" + mark.slot, width: 21, height: 16, rx: 4}, svg);
      write(svg, "bw-letters bw-i" + mark.slot, 10.5, 11.5, mark.letters, 9.5, SANS, "middle");
      item.appendChild(document.createTextNode(source));
      list.appendChild(item);
    }
    element.replaceChildren(list);
  }

  window.BranchwiseTree = {
    drawTree: drawTree, drawMask: drawMask, drawLegend: drawLegend, describe: describe, layout: layout, badge: badge,
    lineage: lineage,
  };
})();
