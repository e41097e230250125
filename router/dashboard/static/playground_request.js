/** Sends one chat request and reports what comes, as it comes. */

import { errorMessage, send } from "./api.js";
import { EventParser } from "./sse.js";

/** Headers in the order in which they are shown; the others that begin with x- follow. */
const FIRST_HEADERS = [
  "x-cache",
  "x-cache-reason",
  "x-cache-key",
  "age",
  "cache-status",
  "x-task",
  "x-engine",
  "x-fallback",
  "x-adjusted",
];

export function tenantHeaders(mode, value) {
  if (mode === "keys" && value) return { authorization: `Bearer ${value}` };
  if (mode === "header" && value) return { "x-tenant-id": value };
  return {};
}

/**
 * `report` has: `response(status, headers, ms)`, `text(piece, ms)`, `usage(usage)`, `problem(message)`. `ms` counts from
 * the start of the request. Resolves to the total in milliseconds. Raises RequestError and AbortError.
 */
export async function ask(body, headers, signal, report) {
  const started = performance.now();
  const elapsed = () => performance.now() - started;
  // The session's cookie is not for this API. No `cache: "no-store"`: the browser would send Cache-Control: no-cache.
  const response = await send("/v1/chat/completions", {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json", ...headers },
    signal,
    credentials: "omit",
  });
  report.response(response.status, shownHeaders(response.headers), elapsed());
  if (!response.ok) report.problem(await errorMessage(response));
  else await readStream(response, elapsed, report);
  return elapsed();
}

function shownHeaders(headers) {
  const names = [...headers.keys()];
  const rest = names.filter(
    (name) => (name.startsWith("x-") || name === "retry-after") && !FIRST_HEADERS.includes(name),
  );
  return [...FIRST_HEADERS.filter((name) => headers.has(name)), ...rest].map((name) => [name, headers.get(name)]);
}

async function readStream(response, elapsed, report) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let done = false;
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    for (const data of parser.feed(chunk.value)) {
      if (data === "[DONE]") done = true;
      else reportEvent(JSON.parse(data), elapsed, report);
    }
  }
  if (!done) report.problem("The stream ended before it was complete.");
}

function reportEvent(event, elapsed, report) {
  if (event.error) report.problem(event.error.message ?? "The engine failed.");
  const delta = event.choices?.[0]?.delta;
  const piece = delta?.content ?? delta?.reasoning ?? "";
  if (piece) report.text(piece, elapsed());
  if (event.usage) report.usage(event.usage);
}
