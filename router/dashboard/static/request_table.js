/** The rows of a table of requests: what the cache did with each, and why. A click opens what happened to it. */

import { cacheBadge } from "./badges.js";
import { cell, element, KeyedList } from "./dom.js";
import { clock, count, milliseconds, UNKNOWN } from "./format.js";
import { reasonInWords } from "./reasons.js";

export function requestRows(table) {
  return new KeyedList(table.tBodies[0], (request) => `${request.at} ${request.router} ${request.request_id}`, requestRow);
}

/** The address of what happened to a request. */
export function requestHash(id) {
  return `#request/${encodeURIComponent(id)}`;
}

/** A request is over, so its row never changes. */
function requestRow(request) {
  const failed = request.status >= 400 || request.outcome === "failed";
  const address = requestHash(request.request_id);
  const node = element(
    "tr",
    { "data-request": request.request_id, click: (event) => follow(event, address) },
    element(
      "th",
      { scope: "row", title: `Request ${request.request_id} at router ${request.router}` },
      element("a", { href: address, "aria-label": `${clock(request.at)}: what happened to this request` }, clock(request.at)),
    ),
    nameCell("Tenant", request.tenant),
    nameCell("Model", request.model),
    cell("Cache", {}, cacheBadge(request.cache)),
    cell("Why", { class: "why" }, element("span", {}, whyParts(request))),
    nameCell("Engine", request.engine),
    cell("Status", { class: "number", "data-tone": failed ? "bad" : null }, String(request.status ?? UNKNOWN)),
    cell("First token", { class: "number" }, milliseconds(request.ttft_ms)),
    cell("Total", { class: "number" }, milliseconds(request.ms)),
    cell("Tokens", { class: "number" }, count(request.completion_tokens)),
    cell("Entry", {}, entryLink(request)),
  );
  return { node, update: () => {} };
}

/** Not where the click is on a link, or ends the selection of a text. */
function follow(event, address) {
  if (event.target.closest("a") || String(getSelection())) return;
  location.hash = address;
}

function nameCell(label, name) {
  return cell(label, {}, element("span", { class: "clipped", title: name }, name ?? UNKNOWN));
}

function whyParts(request) {
  const words = reasonInWords(request);
  if (!["MISS", "BYPASS"].includes(request.cache?.toUpperCase()) || !request.reason) return [words];
  return [element("code", {}, request.reason), " ", words];
}

/** A bypassed request, or one that failed, has no entry. */
export function entryLink({ key, cache, status }) {
  if (!key || cache?.toUpperCase() === "BYPASS" || status !== 200) return UNKNOWN;
  return element(
    "a",
    { href: `#cache/entry/${encodeURIComponent(key)}`, title: key, "aria-label": `Entry ${key}` },
    element("code", {}, key.split(":").at(-1).slice(0, 8)),
  );
}
