/**
 * Markdown as nodes, for the text of a model, which may be hostile: text becomes text nodes, HTML in it is text, and
 * nothing is loaded. An image is a link to it. Only http, https and mailto links are links.
 *
 * Each expression below reads a character a bounded number of times, so that no text makes the page hang.
 */

import { element } from "./dom.js";

const DEEPEST = 6; // lists and quotes within each other; what is deeper is text
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])[ \t]+(.*)$/;
const DELIMITER_CELL = /^:?-+:?$/;
const INLINE =
  /(`{1,3})([^`]+)\1|(!?)\[([^[\]]{1,500})\]\(([^()\s]{1,2000})\)|\*\*([^*]{1,2000})\*\*|\*([^*\s][^*\n]{0,2000})\*|~~([^~]{1,2000})~~/g;
const LINKED = new Set(["http:", "https:", "mailto:"]);

/** The nodes of a text. */
export function renderMarkdown(text) {
  return blocks(text.split(/\r?\n/), 0);
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

/** The block that begins at a line, and the line after it. */
function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const heading = HEADING.exec(line);
  if (FENCE.test(line)) return code(lines, at);
  if (heading) return [element("h3", { class: `level-${heading[1].length}` }, inline(heading[2])), at + 1];
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (isTable(lines, at)) return table(lines, at);
  if (depth < DEEPEST && line.startsWith(">")) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  return paragraph(lines, at);
}

function code(lines, at) {
  const fence = FENCE.exec(lines[at])[1];
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== fence) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return [element("pre", { class: "code", tabindex: "0" }, element("code", {}, text)), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && lines[end].startsWith(">")) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^> ?/, ""));
  return [element("blockquote", {}, blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = marker.length > 1;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const isSibling = item && item[1].length <= indent.length && item[2].length > 1 === ordered;
    const isInside = items.length > 0 && continuesItem(lines, end, indent.length);
    if (isSibling) items.push([item[3]]);
    else if (isInside) items.at(-1).push(lines[end].replace(new RegExp(`^ {0,${indent.length + marker.length + 1}}`), ""));
    else break;
    end += 1;
  }
  const start = ordered && Number.parseInt(marker, 10) !== 1 ? Number.parseInt(marker, 10) : null;
  const nodes = items.map((item) => element("li", {}, itemNodes(item, depth)));
  return [element(ordered ? "ol" : "ul", { start }, nodes), end];
}

/** An item of one paragraph has its text without the paragraph's distance. */
function itemNodes(lines, depth) {
  const nodes = blocks(lines, depth + 1);
  const first = nodes[0];
  return first?.tagName === "P" ? [...first.childNodes, ...nodes.slice(1)] : nodes;
}

function continuesItem(lines, at, indent) {
  const line = lines[at];
  if (line.trim()) return line.startsWith(" ".repeat(indent + 1));
  const next = lines[at + 1] ?? "";
  return next.startsWith(" ".repeat(indent + 1)) || ITEM.exec(next)?.[1].length === indent;
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((text) => text.trim());
}

function isTable(lines, at) {
  const next = lines[at + 1] ?? "";
  return lines[at].includes("|") && next.includes("|") && cells(next).every((text) => DELIMITER_CELL.test(text));
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const titles = cells(lines[at]);
  const row = (line) => cells(line).slice(0, titles.length).map((text) => element("td", {}, inline(text)));
  const head = element("tr", {}, titles.map((text) => element("th", { scope: "col" }, inline(text))));
  const body = lines.slice(at + 2, end).map((line) => element("tr", {}, row(line)));
  return [element("table", { class: "plain" }, element("thead", {}, head), element("tbody", {}, body)), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !beginsBlock(lines, end)) end += 1;
  // A line break of a chat is meant as one.
  const parts = lines.slice(at, end).flatMap((line, index) => [index ? element("br") : null, ...inline(line)]);
  return [element("p", {}, parts), end];
}

function beginsBlock(lines, at) {
  const line = lines[at];
  return [FENCE, HEADING, RULE, ITEM].some((form) => form.test(line)) || line.startsWith(">") || isTable(lines, at);
}

function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, match.index), span(match));
    at = match.index + match[0].length;
  }
  return [...nodes, text.slice(at)].filter((node) => node !== "");
}

function span([whole, , codeText, image, label, address, bold, italic, struck]) {
  if (codeText !== undefined) return element("code", {}, codeText);
  if (bold !== undefined) return element("strong", {}, inline(bold));
  if (italic !== undefined) return element("em", {}, inline(italic));
  if (struck !== undefined) return element("s", {}, struck);
  if (!isLink(address)) return whole;
  const attributes = { href: address, target: "_blank", rel: "noopener noreferrer" };
  return element("a", attributes, image ? `image: ${label}` : label);
}

function isLink(address) {
  try {
    return LINKED.has(new URL(address).protocol);
  } catch {
    return false; // a relative one would lead into the dashboard
  }
}
