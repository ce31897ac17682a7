// A step written by hand, for the time before there is one:
//
//     the cat -+- sat -+- on --- the === mat
//              |       `- down
//              +- ran --- away
//              `- is

function node(text, parent, depth, source, draft, accepted = false) {
  return { id: 0, text, cells: text.length, parent, depth, source, draft, target: null, accepted };
}

export const EXAMPLE = {
  nodes: [
    node("·cat", -1, 0, null, null, true),
    node("·sat", 0, 1, "ngram", 0.71, true),
    node("·on", 1, 2, "ngram", 0.84, true),
    node("·the", 2, 3, "recycling", 0.62, true),
    node("·down", 1, 2, "recycling", 0.11),
    node("·ran", 0, 1, "recycling", 0.14),
    node("·away", 5, 2, "ngram", 0.3),
    node("·is", 0, 1, "recycling", 0.08),
  ],
  path: [0, 1, 2, 3],
  bonus: { id: 0, text: "·mat", cells: 4, source: "target" },
  emitted: 4,
  budget: null,
  committed: null,
  ms: null,
};
