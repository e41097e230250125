/** The listing of the cache's entries: a search by filter, and pages. */

import { requestJson } from "./api.js";
import { confirm } from "./dialog.js";
import { byId, cell, element, isEnabled, setEnabled, setText } from "./dom.js";
import { filterInWords, listingHash, readFilter, writeFilter } from "./filters.js";
import { age, bytes, count, duration, milliseconds, plural, shorten, UNKNOWN } from "./format.js";
import { notify } from "./notices.js";

const PAGE_SIZE = 25;
const MOST_FOUND = 100; // entries shown of those with the words; there are no pages of them

export class EntryListing {
  #filter = {};
  #text = "";
  #sort = "key";
  #starts = [null]; // the cursor with which each page up to the shown one begins
  #next = null;
  #request = null;

  constructor() {
    byId("search").addEventListener("submit", (event) => this.#search(event));
    whenEnabled(byId("page-next"), () => this.#load([...this.#starts, this.#next]));
    whenEnabled(byId("page-back"), () => this.#load(this.#starts.slice(0, -1)));
    byId("count-entries").addEventListener("click", () => this.#count());
    byId("purge-found").addEventListener("click", () => this.#purgeFound());
  }

  /** Shows the first page of the filter in an address. */
  show(params) {
    const form = byId("search");
    writeFilter(form, params);
    form.elements.text.value = params.get("text") ?? "";
    form.elements.sort.value = params.get("sort") ?? "key";
    if (form.elements.sort.selectedIndex < 0) form.elements.sort.value = "key";
    this.#filter = readFilter(form);
    this.#text = form.elements.text.value.trim();
    this.#sort = form.elements.sort.value;
    this.#load([null]);
  }

  leave() {
    this.#request?.abort();
  }

  #search(event) {
    event.preventDefault();
    const form = byId("search");
    const search = readFilter(form);
    if (form.elements.text.value.trim()) search.text = form.elements.text.value.trim();
    if (form.elements.sort.value !== "key") search.sort = form.elements.sort.value;
    const target = listingHash(search);
    if (location.hash === target) this.#load([null]);
    else location.hash = target;
  }

  async #load(starts) {
    this.#request?.abort();
    const request = (this.#request = new AbortController());
    setText(byId("entries-status"), "Searching…");
    this.#allowPaging(false);
    byId("purge-found").hidden = true;
    try {
      if (this.#text) await this.#find(request.signal);
      else await this.#list(starts, request.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#fill([], "");
      setText(byId("entries-status"), error.message);
    }
    this.#allowPaging(true);
  }

  async #list(starts, signal) {
    const query = new URLSearchParams({ ...this.#filter, sort: this.#sort, limit: PAGE_SIZE });
    if (starts.at(-1) !== null) query.set("cursor", starts.at(-1));
    const { entries, cursor } = await requestJson("GET", `/admin/cache/entries?${query}`, { signal });
    this.#starts = starts;
    this.#next = cursor;
    const page = starts.length > 1 || cursor ? ` on page ${starts.length}` : "";
    const matching = filterInWords(this.#filter);
    const found = `${entryCount(entries.length)}${page}${matching ? ` with ${matching}` : ""}.`;
    this.#fill(entries, entries.length ? found : emptyText(matching));
  }

  /** The entries whose answers have the words. */
  async #find(signal) {
    const result = await this.#grep({ sort: this.#sort, limit: MOST_FOUND }, signal);
    this.#starts = [null];
    this.#next = null;
    byId("purge-found").hidden = result.matches === 0;
    this.#fill(result.entries, foundInWords(result));
  }

  #grep(options, signal) {
    const body = JSON.stringify({ ...this.#filter, text: this.#text, ...options });
    return requestJson("POST", "/admin/cache/grep", { body, signal });
  }

  async #purgeFound() {
    const confirmed = await confirm({
      title: "Purge these entries?",
      lines: [
        `All entries whose answers have “${shorten(this.#text, 80)}” are deleted, also those that are not shown. It cannot be undone.`,
      ],
      action: "Purge",
      danger: true,
      typed: "purge",
    });
    if (!confirmed) return;
    try {
      const { purge } = await this.#grep({ purge: true, limit: 1 });
      notify(`Purged ${entryCount(purge.entries)} and ${plural(purge.claims, "generation")} in progress.`);
    } catch (error) {
      notify(`The purge may be incomplete; repeat it. ${error.message}`, { bad: true });
    }
    this.#load([null]);
  }

  #allowPaging(allowed) {
    setEnabled(byId("page-back"), allowed && this.#starts.length > 1);
    setEnabled(byId("page-next"), allowed && this.#next !== null);
  }

  #fill(entries, status) {
    const table = byId("entries");
    table.tBodies[0].replaceChildren(...entries.map(entryRow));
    table.hidden = entries.length === 0;
    setText(byId("entries-status"), status);
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

function entryCount(number) {
  return plural(number, "entry", "entries");
}

function foundInWords({ entries, matches, looked_at: searched, skipped, everything }) {
  return [
    `${count(matches)} of ${entryCount(searched)} have these words.`,
    matches > entries.length ? `The first ${count(entries.length)} are shown.` : "",
    skipped ? `${count(skipped)} have no readable answer.` : "",
    everything ? "" : "There are more entries, which were not searched: choose a tenant or a model.",
  ]
    .filter(Boolean)
    .join(" ");
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
  preview,
  hits,
  saved_seconds: saved,
}) {
  const link = element(
    "a",
    { href: `#cache/entry/${encodeURIComponent(key)}`, title: key, "aria-label": `Entry ${key}` },
    element("code", {}, shorten(parts.query, 13)),
  );
  return element(
    "tr",
    {},
    element(
      "th",
      { scope: "row" },
      link,
      element("div", { class: "small words" }, preview ?? "No text can be shown."),
    ),
    cell("Tenant", {}, parts.tenant),
    cell("Model", {}, parts.model),
    cell("Engine", {}, [engine ?? UNKNOWN, task ? ` (${task})` : ""]),
    cell("Age", { class: "number" }, age(seconds)),
    cell("Fresh for", { class: "number", "data-tone": stale ? "warn" : null }, stale ? "stale" : age(ttl)),
    cell("Hits", { class: "number" }, count(hits ?? 0)),
    cell("Saved", { class: "number" }, duration(saved)),
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
