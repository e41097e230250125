/** The listing of the cache's entries: a search by filter, and pages. */

import { requestJson } from "./api.js";
import { byId, cell, element, isEnabled, setEnabled, setText } from "./dom.js";
import { filterInWords, listingHash, readFilter, writeFilter } from "./filters.js";
import { age, bytes, count, milliseconds, plural, shorten, UNKNOWN } from "./format.js";

const PAGE_SIZE = 25;

export class EntryListing {
  #filter = {};
  #starts = [null]; // the cursor with which each page up to the shown one begins
  #next = null;
  #request = null;

  constructor() {
    byId("search").addEventListener("submit", (event) => this.#search(event));
    whenEnabled(byId("page-next"), () => this.#load([...this.#starts, this.#next]));
    whenEnabled(byId("page-back"), () => this.#load(this.#starts.slice(0, -1)));
    byId("count-entries").addEventListener("click", () => this.#count());
  }

  /** Shows the first page of the filter in an address. */
  show(params) {
    writeFilter(byId("search"), params);
    this.#filter = readFilter(byId("search"));
    this.#load([null]);
  }

  leave() {
    this.#request?.abort();
  }

  #search(event) {
    event.preventDefault();
    const target = listingHash(readFilter(byId("search")));
    if (location.hash === target) this.#load([null]);
    else location.hash = target;
  }

  async #load(starts) {
    this.#request?.abort();
    const request = (this.#request = new AbortController());
    setText(byId("entries-status"), "Searching…");
    this.#allowPaging(false);
    const query = new URLSearchParams({ ...this.#filter, limit: PAGE_SIZE });
    if (starts.at(-1) !== null) query.set("cursor", starts.at(-1));
    try {
      const page = await requestJson("GET", `/admin/cache/entries?${query}`, { signal: request.signal });
      this.#starts = starts;
      this.#next = page.cursor;
      this.#fill(page.entries);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#fill([]);
      setText(byId("entries-status"), error.message);
    }
    this.#allowPaging(true);
  }

  #allowPaging(allowed) {
    setEnabled(byId("page-back"), allowed && this.#starts.length > 1);
    setEnabled(byId("page-next"), allowed && this.#next !== null);
  }

  #fill(entries) {
    const table = byId("entries");
    table.tBodies[0].replaceChildren(...entries.map(entryRow));
    table.hidden = entries.length === 0;
    const page = this.#starts.length;
    const matching = filterInWords(this.#filter);
    const found = `${plural(entries.length, "entry", "entries")}${page > 1 || this.#next ? ` on page ${page}` : ""}${matching ? ` with ${matching}` : ""}.`;
    setText(byId("entries-status"), entries.length ? found : emptyText(matching));
  }

  async #count() {
    const box = byId("cache-stats");
    box.hidden = false;
    box.replaceChildren(element("p", { class: "muted" }, "Counting…"));
    try {
      box.replaceChildren(...statsContent(await requestJson("GET", "/admin/cache/stats")));
    } catch (error) {
      box.replaceChildren(element("p", { class: "form-error" }, error.message));
    }
  }
}

function whenEnabled(button, action) {
  button.addEventListener("click", () => isEnabled(button) && action());
}

function emptyText(matching) {
  return matching
    ? `No entry with ${matching}. Check the spelling, or clear the filter.`
    : "The cache is empty. Send a request, for example from the playground; its complete response is stored.";
}

function entryRow({
  key,
  parts,
  engine,
  task,
  age: seconds,
  ttl,
  stale,
  completion_tokens: tokens,
  generation_ms: generation,
  bytes: size,
}) {
  const link = element(
    "a",
    { href: `#cache/entry/${encodeURIComponent(key)}`, title: key, "aria-label": `Entry ${key}` },
    element("code", {}, shorten(parts.query, 13)),
  );
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, link),
    cell("Tenant", {}, parts.tenant),
    cell("Model", {}, parts.model),
    cell("Engine", {}, [engine ?? UNKNOWN, task ? ` (${task})` : ""]),
    cell("Age", { class: "number" }, age(seconds)),
    cell("Fresh for", { class: "number", "data-tone": stale ? "warn" : null }, stale ? "stale" : age(ttl)),
    cell("Tokens", { class: "number" }, count(tokens)),
    cell("Generated in", { class: "number" }, milliseconds(generation)),
    cell("Memory", { class: "number" }, bytes(size)),
  );
}

function statsContent({ total, tenants, claims, flights }) {
  const line = `${plural(total.entries, "entry", "entries")}, ${count(total.stale)} of them stale, with ${count(total.tokens)} tokens in ${bytes(total.bytes)}. In progress: ${plural(claims, "generation")}, ${plural(flights, "shared stream")}.`;
  const rows = Object.entries(tenants).flatMap(([tenant, models]) =>
    Object.entries(models).map(([model, counts]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, element("a", { href: listingHash({ tenant, model }) }, `${tenant} · ${model}`)),
        cell("Entries", { class: "number" }, count(counts.entries)),
        cell("Stale", { class: "number" }, count(counts.stale)),
        cell("Tokens", { class: "number" }, count(counts.tokens)),
        cell("Memory", { class: "number" }, bytes(counts.bytes)),
      ),
    ),
  );
  const heads = ["Tenant and model", "Entries", "Stale", "Tokens", "Memory"].map((name, index) =>
    element("th", { scope: "col", class: index ? "number" : "" }, name),
  );
  const table = element(
    "table",
    { class: "cards" },
    element("caption", { class: "visually-hidden" }, "Entries by tenant and model"),
    element("thead", {}, element("tr", {}, heads)),
    element("tbody", {}, rows),
  );
  return [element("p", {}, line), ...(rows.length ? [table] : [])];
}
