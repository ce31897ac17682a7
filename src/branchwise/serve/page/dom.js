// Making elements. Text goes in as text, never as markup.

/** @param {Object<string, string|boolean|Function>} attributes `onclick` and the like are listeners */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(key, value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** The class that tints what a drafter proposed; the model's own tokens have none. */
export function tint(source) {
  return source === null ? "own" : `s${window.BranchwiseTree.badge(source).slot}`;
}
