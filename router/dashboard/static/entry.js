/** One entry: what is stored, for how long, from which request, and its deletion. */

import { requestJson } from "./api.js";
import { confirm } from "./dialog.js";
import { byId, descriptions, element, setText } from "./dom.js";
import { listingHash } from "./filters.js";
import { age, bytes, count, dateTime, milliseconds, plural } from "./format.js";
import { notify } from "./notices.js";

const NONE = "0000000000000000"; // the hash of an absent part
const LONGEST_TEXT = 200_000;

export async function showEntry(key) {
  const content = byId("entry-content");
  content.replaceChildren(element("p", { class: "muted", role: "status" }, "Loading…"));
  byId("entry-title").focus();
  try {
    const detail = await requestJson("GET", `/admin/cache/entries/${encodeURIComponent(key)}`);
    content.replaceChildren(...entryContent(detail));
  } catch (error) {
    const text =
      error.status === 404
        ? "No entry is stored at this key: it has expired, was deleted or evicted, or its response was not stored."
        : error.message;
    content.replaceChildren(
      element("code", { class: "key" }, key),
      element("p", { class: "form-error", role: "alert" }, text),
    );
  }
}

function entryContent(detail) {
  const { entry, problem, text, fields } = detail;
  return [
    element("p", { class: "key-row" }, element("code", { class: "key" }, entry.key), copyButton(entry.key)),
    problem ? element("p", { class: "warning" }, `The router does not use this entry: ${problem}.`) : null,
    element("dl", { class: "facts grid" }, descriptions(entryFacts(detail))),
    element("h3", {}, "Response"),
    element("pre", { class: "answer", tabindex: "0", "aria-label": "The text of the response" }, shownText(text)),
    element("h3", {}, "Request"),
    element("p", { class: "small muted" }, "Prompts are not stored, only hashes of their parts."),
    partsTable(entry),
    rawFields(fields),
    element(
      "div",
      { class: "actions" },
      element(
        "button",
        { type: "button", class: "button danger", click: () => deleteEntry(entry.key) },
        "Delete this entry",
      ),
    ),
  ].filter(Boolean);
}

function entryFacts({ entry, stream, hits }) {
  const { completion_tokens: completion, prompt_tokens: prompt, generation_ms: generation } = entry;
  return [
    [
      "State",
      element("span", { class: "state", "data-tone": entry.stale ? "warn" : "good" }, entry.stale ? "Stale" : "Fresh"),
    ],
    ["Age", `${age(entry.age)} (${dateTime(entry.created)})`],
    ["Fresh for", entry.stale ? "past its time to live" : age(entry.ttl)],
    ["Leaves Redis in", entry.gone_in === null ? "never" : age(entry.gone_in)],
    ["Hits", hits === null ? "none counted" : count(hits)],
    ["Model", entry.model ?? entry.parts.model],
    ["Engine", `${entry.engine ?? "unknown"}${entry.task ? `, task ${entry.task}` : ""}`],
    ["Tokens", `${count(prompt)} prompt, ${count(completion)} completion`],
    ["Generation", generation === null ? null : `${milliseconds(generation)}: what a hit saves`],
    ["Memory", bytes(entry.bytes)],
    [
      "Stored as",
      stream
        ? `stream, ${stream.events === null ? "unreadable" : bytes(stream.events)} of events in ${bytes(stream.bytes)}`
        : "JSON",
    ],
  ];
}

function shownText(text) {
  if (text === null) return "No text can be shown.";
  return text.length > LONGEST_TEXT
    ? `${text.slice(0, LONGEST_TEXT)}\n… ${plural(text.length - LONGEST_TEXT, "more character")}`
    : text;
}

function partsTable({ parts, documents }) {
  const { tenant, model, system, rag, query } = parts;
  const rows = [
    ["Tenant", tenant, "the tenant of the request", { tenant }],
    ["Model", model, "the public name; aliases are resolved", { tenant, model }],
    [
      "System",
      system,
      system === NONE ? "no system prompt" : "hash of the system prompt",
      system === NONE ? null : { system },
    ],
    [
      "Documents",
      rag,
      rag === NONE
        ? "no retrieved text"
        : `hash of the retrieved text${documents.length ? `: ${documents.join(", ")}` : ""}`,
      rag === NONE ? null : { rag },
    ],
    ["Query", query, "hash of everything else: messages, parameters, endpoint", null],
  ];
  const heads = ["Part of the key", "Value", "Made of", "Entries with it"].map((name) =>
    element("th", { scope: "col" }, name),
  );
  return element(
    "table",
    { class: "cards" },
    element("caption", { class: "visually-hidden" }, "Parts of the key"),
    element("thead", {}, element("tr", {}, heads)),
    element(
      "tbody",
      {},
      rows.map(([name, value, madeOf, filter]) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, name),
          element("td", { "data-label": "Value" }, element("code", {}, value)),
          element("td", { "data-label": "Made of" }, madeOf),
          element(
            "td",
            { "data-label": "Entries with it" },
            filter
              ? element(
                  "a",
                  { href: listingHash(filter), "aria-label": `List entries with this ${name.toLowerCase()}` },
                  "List",
                )
              : "–",
          ),
        ),
      ),
    ),
  );
}

function rawFields(fields) {
  const rows = Object.entries(fields).map(([name, value]) =>
    element(
      "div",
      {},
      element("dt", {}, element("code", {}, name)),
      element("dd", {}, element("code", {}, shownText(value))),
    ),
  );
  return element("details", {}, element("summary", {}, "All fields, as stored"), element("dl", { class: "raw" }, rows));
}

function copyButton(text) {
  if (!navigator.clipboard) return null; // only in secure contexts
  const button = element(
    "button",
    {
      type: "button",
      class: "button small",
      click: async () => {
        await navigator.clipboard.writeText(text);
        setText(button, "Copied");
      },
    },
    "Copy the key",
  );
  return button;
}

async function deleteEntry(key) {
  const confirmed = await confirm({
    title: "Delete this entry?",
    lines: ["The next equal request is a miss. A generation in progress for it is not stored."],
    action: "Delete",
    danger: true,
  });
  if (!confirmed) return;
  try {
    await requestJson("DELETE", `/admin/cache/entries/${encodeURIComponent(key)}`);
    notify("The entry is deleted.");
    location.hash = byId("entry-back").getAttribute("href");
  } catch (error) {
    notify(`The entry was not deleted. ${error.message}`, { bad: true });
  }
}
