/** The latest requests, newest first: what the cache did, and why. */

import { cacheBadge } from "./badges.js";
import { byId, cell, element, KeyedList } from "./dom.js";
import { clock, count, milliseconds, UNKNOWN } from "./format.js";
import { fillReasonTable, reasonInWords } from "./reasons.js";

const MOST = 50;
const FEW = 12;
const FILTERS = {
  all: () => true,
  misses: ({ cache }) => ["MISS", "BYPASS"].includes(cache?.toUpperCase()),
  failures: ({ status, outcome }) => status >= 400 || outcome === "failed" || outcome === "left",
};
const EMPTY = {
  misses: "None of the latest requests is a miss.",
  failures: "None of the latest requests failed.",
};

export function mountRequests() {
  const rows = new KeyedList(
    byId("requests").tBodies[0],
    (request) => `${request.at} ${request.router} ${request.request_id}`,
    requestRow,
  );
  const filter = byId("requests-filter");
  const whenEmpty = [...byId("requests-empty").childNodes];
  const more = byId("requests-more");
  let latest = [];
  let limit = FEW;
  const show = () => {
    const chosen = filter.querySelector("input:checked").value;
    const shown = latest.filter(FILTERS[chosen]);
    rows.update(shown.slice(0, limit));
    more.hidden = shown.length <= limit;
    byId("requests").hidden = shown.length === 0;
    byId("requests-empty").hidden = shown.length > 0;
    byId("requests-empty").replaceChildren(...(latest.length ? [EMPTY[chosen] ?? ""] : whenEmpty));
  };
  filter.addEventListener("change", show);
  more.addEventListener("click", () => {
    limit = MOST;
    show();
  });
  fillReasonTable(byId("reasons").tBodies[0]);
  show();
  return ({ requests }) => {
    latest = requests.slice(0, MOST);
    show();
  };
}

/** A request is over, so its row never changes. */
function requestRow(request) {
  const failed = request.status >= 400 || request.outcome === "failed";
  const node = element(
    "tr",
    { "data-request": request.request_id },
    element(
      "th",
      { scope: "row", title: `Request ${request.request_id} at router ${request.router}` },
      clock(request.at),
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

function nameCell(label, name) {
  return cell(label, {}, element("span", { class: "clipped", title: name }, name ?? UNKNOWN));
}

function whyParts(request) {
  const words = reasonInWords(request);
  if (!["MISS", "BYPASS"].includes(request.cache?.toUpperCase()) || !request.reason) return [words];
  return [element("code", {}, request.reason), " ", words];
}

/** A bypassed request, or one that failed, has no entry. */
function entryLink({ key, cache, status }) {
  if (!key || cache?.toUpperCase() === "BYPASS" || status !== 200) return UNKNOWN;
  return element(
    "a",
    { href: `#cache/entry/${encodeURIComponent(key)}`, title: key, "aria-label": `Entry ${key}` },
    element("code", {}, key.split(":").at(-1).slice(0, 8)),
  );
}
