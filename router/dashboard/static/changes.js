/** What administrators changed: when, who, what; `#changes?action=purge` is the address of one kind. */

import { requestJson } from "./api.js";
import { byId, cell, element, setEnabled, setText } from "./dom.js";
import { count, dateTime, plural, shorten } from "./format.js";

const PAGE = 50;

export class ChangeList {
  #action = byId("changes-action");
  #older = byId("changes-older");
  #entries = [];
  #before = null;
  #aborter = null;

  constructor() {
    this.#action.addEventListener("change", () => {
      location.hash = this.#action.value ? `#changes?action=${this.#action.value}` : "#changes";
    });
    byId("changes-verify").addEventListener("click", (event) => this.#verify(event.currentTarget));
    byId("changes-refresh").addEventListener("click", () => this.#read());
    this.#older.addEventListener("click", () => this.#read(this.#before));
  }

  show(params) {
    const action = params.get("action") ?? "";
    const known = [...this.#action.options].some(({ value }) => value === action);
    this.#action.value = known ? action : "";
    this.#entries = [];
    this.#read();
  }

  async #read(before = null) {
    this.#aborter?.abort();
    this.#aborter = new AbortController();
    const { signal } = this.#aborter;
    const status = byId("changes-status");
    if (!this.#entries.length) setText(status, "Reading…");
    const query = new URLSearchParams({ limit: PAGE });
    if (this.#action.value) query.set("action", this.#action.value);
    if (before !== null) query.set("before", before);
    try {
      const page = await requestJson("GET", `/admin/audit?${query}`, { signal });
      this.#entries = before === null ? page.entries : [...this.#entries, ...page.entries];
      this.#before = page.before;
      byId("changes").tBodies[0].replaceChildren(...this.#entries.map(changeRow));
      byId("changes").hidden = this.#entries.length === 0;
      this.#older.hidden = page.before === null;
      setText(status, this.#entries.length ? plural(this.#entries.length, "change") : "No change is recorded.");
    } catch (error) {
      if (error.name !== "AbortError") setText(status, `The changes cannot be read. ${error.message}`);
    }
  }

  async #verify(button) {
    const result = byId("changes-chain");
    setEnabled(button, false);
    setText(result, "Checking all entries…");
    result.dataset.tone = "";
    try {
      const report = await requestJson("GET", "/admin/audit/verify");
      result.dataset.tone = report.broken ? "bad" : "";
      setText(result, reportAsText(report));
    } catch (error) {
      setText(result, `The chain cannot be checked. ${error.message}`);
    }
    setEnabled(button, true);
  }
}

/** What a look at the chain found. Pure. */
export function reportAsText({ entries, trimmed, newest, broken }) {
  if (broken) {
    const which = broken.number === null ? "An entry" : `Entry ${count(broken.number)}`;
    return `${which} (${broken.id}): ${broken.problem}. The ${plural(entries, "entry", "entries")} before it follow from one another.`;
  }
  if (!entries) return "There is no entry to check.";
  const before = trimmed ? ` ${count(trimmed)} before them are not kept any more.` : "";
  return `${plural(entries, "entry", "entries")}, each follows from the one before it.${before} Newest hash: ${newest}; compare it with the log.`;
}

/** "entries 212, generations 1" */
export function detailsAsText(details) {
  return Object.entries(details)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${detailAsText(value)}`)
    .join("; ");
}

function detailAsText(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" ? count(value) : String(value);
}

function changeRow(entry) {
  return element(
    "tr",
    { "data-change": entry.number },
    element("th", { scope: "row", title: `Entry ${entry.number}, hash ${entry.hash}` }, dateTime(entry.at)),
    cell("Who", {}, entry.actor),
    cell("What", {}, entry.action.replaceAll("_", " ")),
    cell("Of", { title: entry.subject }, shorten(entry.subject, 80)),
    cell("Details", {}, detailsAsText(entry.details)),
    cell("Router", {}, entry.router || "command"),
  );
}
