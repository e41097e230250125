/** The reasons of misses and bypasses in words; docs/debugging-a-miss.md has the same table. */

import { element } from "./dom.js";

const REASONS = {
  new: "No similar request is known.",
  expired: "An entry existed: it is past its time to live, was deleted or evicted, or does not fit the requested format.",
  purged: "An entry existed, and a purge has deleted it.",
  sample: "Fewer answers to the request were kept than cache.samples says: another one was added.",
  "not-stored": "A response to this request was generated before, but could not be stored.",
  params: "The same messages were answered with other parameters, such as temperature or max_tokens.",
  model: "The same request was answered by another model, or another revision of it.",
  system: "Only the system prompt differs from a stored request.",
  rag: "Only the retrieved documents differ from a stored request.",
  query: "Only the question differs from a stored request.",
  "redis-down": "Redis does not respond, so nothing was looked up.",
  policy: "cache.store is “deterministic”, and the request has neither temperature 0 nor a seed.",
  off: "The model or the tenant has cache = “off”.",
  "no-store": "The client sent Cache-Control: no-store.",
  "no-cache": "The client sent Cache-Control: no-cache.",
  session: "The session has had all kept answers to the request.",
  uncacheable: "The response depends on more than the request.",
};

const RESULTS = {
  HIT: "Served from the cache.",
  COALESCED: "Shared the generation of an equal request in progress.",
  STALE: "An expired entry: engines could not answer, or the client accepts it.",
};

const OUTCOMES = {
  left: "The client disconnected.",
  failed: "The stream broke off after its first token.",
};

export function reasonInWords({ cache, reason, status, outcome }) {
  const result = cache === null ? null : (REASONS[reason] ?? RESULTS[cache?.toUpperCase()] ?? reason);
  const problem =
    OUTCOMES[outcome] ??
    (status >= 400 ? `Ended with status ${status}${reason && !(reason in REASONS) ? ` (${reason})` : ""}.` : null);
  return [problem, result].filter(Boolean).join(" ") || "Not looked up.";
}

export function fillReasonTable(body) {
  body.append(
    ...Object.entries(REASONS).map(([name, meaning]) =>
      element("tr", {}, element("th", { scope: "row" }, element("code", {}, name)), element("td", {}, meaning)),
    ),
  );
}
