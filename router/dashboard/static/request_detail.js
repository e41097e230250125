/** One request: what `roundhouse why` says about it. */

import { requestJson } from "./api.js";
import { cacheBadge } from "./badges.js";
import { byId, element, textWithCode } from "./dom.js";
import { dateTime, plural } from "./format.js";
import { requestsHash } from "./request_list.js";
import { entryLink } from "./request_table.js";

const NAMES = { asked: "Asked", answered: "Answered", cache: "Cache", time: "Time", engines: "Engines", next: "What to do" };

export async function showRequest(id) {
  const content = byId("request-content");
  const address = location.hash;
  content.replaceChildren(element("p", { class: "muted", role: "status" }, "Asking the routers…"));
  byId("request-title").focus();
  let shown;
  try {
    const query = new URLSearchParams({ id, words: "1", limit: "20" });
    const { requests } = await requestJson("GET", `/admin/requests?${query}`);
    shown = requests.length ? explanations(id, requests) : notFound(id);
  } catch (error) {
    shown = [named(id), element("p", { class: "form-error", role: "alert" }, error.message)];
  }
  if (location.hash === address) content.replaceChildren(...shown); // the viewer may have gone on
}

/** A client may use an id for several requests. */
function explanations(id, requests) {
  const several =
    requests.length > 1 ? [element("p", { class: "warning" }, `${plural(requests.length, "request")} had this id.`)] : [];
  return [
    named(id),
    ...several,
    ...requests.flatMap(explanation),
    element("p", { class: "small muted" }, "In a terminal: ", element("code", {}, `roundhouse why ${id}`)),
  ];
}

function explanation(request) {
  return [
    element("p", { class: "actions" }, cacheBadge(request.cache), element("span", {}, dateTime(request.at))),
    element("dl", { class: "words-of-request" }, linesByName(request.words ?? []).map(paragraphs)),
    element(
      "p",
      { class: "actions" },
      element("a", { href: requestsHash({ tenant: request.tenant }) }, `Requests of tenant ${request.tenant}`),
      request.model ? element("a", { href: requestsHash({ model: request.model }) }, `Requests at model ${request.model}`) : null,
      entryPart(request),
    ),
  ];
}

function entryPart(request) {
  const link = entryLink(request);
  return typeof link === "string" ? null : element("span", {}, "Entry ", link);
}

/** The lines in their order, those of one name together. */
export function linesByName(words) {
  const found = new Map();
  for (const { name, text } of words) found.set(name, [...(found.get(name) ?? []), text]);
  return [...found];
}

function paragraphs([name, texts]) {
  return element(
    "div",
    {},
    element("dt", {}, NAMES[name] ?? name),
    element(
      "dd",
      {},
      texts.map((text) => element("p", {}, name === "next" ? textWithCode(text) : text)),
    ),
  );
}

function notFound(id) {
  const text =
    "No router remembers this request. Each process keeps its last 256, and its last 256 that failed or were slow; its log has all.";
  return [named(id), element("p", { class: "form-error", role: "alert" }, text)];
}

function named(id) {
  return element("p", {}, element("code", { class: "key" }, id));
}
