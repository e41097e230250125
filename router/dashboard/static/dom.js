/** Creates and changes elements. Data become text nodes and attributes, never HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** `attributes`: a function becomes a listener for the event of that name; null, undefined and false are left out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  appendAll(node, children.flat());
  return node;
}

/** One by one, since a call takes some ten thousand arguments at most. null and undefined are left out. */
export function appendAll(node, children) {
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
}

/** Sets the text of a node, if it differs: an unchanged node keeps its selection, and screen readers stay quiet. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A button that is not enabled keeps the focus; its listeners ask `isEnabled`. */
export function setEnabled(button, enabled) {
  button.setAttribute("aria-disabled", String(!enabled));
}

export function isEnabled(button) {
  return button.getAttribute("aria-disabled") !== "true";
}

export function byId(id) {
  return document.getElementById(id);
}

/**
 * Keeps one child of `parent` for each item, in the order of the items. A child stays the same node as long as its key
 * does, so that it keeps the focus. `create(item)` returns `{node, update(item)}`.
 */
export class KeyedList {
  #parent;
  #keyOf;
  #create;
  #shown = new Map();

  constructor(parent, keyOf, create) {
    this.#parent = parent;
    this.#keyOf = keyOf;
    this.#create = create;
  }

  update(items) {
    const remaining = new Set(this.#shown.keys());
    const focused = this.#parent.contains(document.activeElement) ? document.activeElement : null;
    let position = this.#parent.firstElementChild;
    for (const item of items) {
      const key = this.#keyOf(item);
      remaining.delete(key);
      const child = this.#shown.get(key) ?? this.#create(item);
      this.#shown.set(key, child);
      child.update(item);
      if (child.node === position) position = position.nextElementSibling;
      else this.#parent.insertBefore(child.node, position);
    }
    for (const key of remaining) {
      this.#shown.get(key).node.remove();
      this.#shown.delete(key);
    }
    // A node that is moved loses the focus.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
  }
}

/** A table cell; `label` names its column where the table is shown as cards. */
export function cell(label, attributes = {}, ...children) {
  return element("td", { "data-label": label, ...attributes }, ...children);
}

/** Text in which what is between backticks is code. */
export function textWithCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

/** The rows of a description list. An absent value is left out. */
export function descriptions(pairs) {
  return pairs
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}
