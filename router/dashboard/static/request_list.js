/**
 * The requests that the routers remember, by tenant, model, key and end; `#requests?tenant=acme&show=failed` is their address.
 *
 * The routers filter, so that a rare failure is found among thousands of hits. The list is read again every few seconds
 * while it is looked at and not paused.
 */

import { requestJson } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { clock, plural } from "./format.js";
import { requestHash, requestRows } from "./request_table.js";
import { haveAllPublished, whyNone } from "./requests.js";

const MOST = 200; // what the router sends at most
const INTERVAL = 2000;
const FILTERED_INTERVAL = 5000; // to filter, a router reads all requests that are remembered

const NAMES = ["tenant", "model", "key"];
const SHOWN = { misses: { hits: "0" }, slow: { slow: "1" }, failed: { failed: "1", refused: "0" }, refused: { refused: "1" } };
const ADJECTIVES = { misses: "that is no hit", slow: "that was slow", failed: "that failed", refused: "that was refused" };

/** What the address asks for: the fields that are filled in. */
export function requestFilter(params) {
  const filter = Object.fromEntries([...NAMES, "show"].map((name) => [name, params.get(name)]));
  if (!(filter.show in SHOWN)) filter.show = null;
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
}

export function requestsHash(filter) {
  const query = new URLSearchParams(filter).toString();
  return query ? `#requests?${query}` : "#requests";
}

/** The parameters of /admin/requests. */
export function requestQuery({ show, ...names }) {
  return new URLSearchParams({ limit: String(MOST), ...names, ...(SHOWN[show] ?? {}) }).toString();
}

/** "request of tenant acme at model llama that failed" */
export function filterAsText({ tenant, model, key, show }) {
  return [
    "request",
    tenant ? `of tenant ${tenant}` : null,
    model ? `at model ${model}` : null,
    key ? `with key ${key}` : null,
    ADJECTIVES[show] ?? null,
  ]
    .filter(Boolean)
    .join(" ");
}

export class RequestList {
  #rows = requestRows(byId("request-list"));
  #form = byId("request-filter");
  #pause = byId("requests-pause");
  #filter = {};
  #status = null;
  #timer = 0;
  #aborter = null;
  #shown = false;
  #paused = false;
  #isFirst = true;

  constructor() {
    this.#form.addEventListener("submit", (event) => this.#submit(event));
    this.#form.elements.show.addEventListener("change", () => this.#form.requestSubmit());
    this.#pause.addEventListener("click", () => this.#togglePause());
    document.addEventListener("visibilitychange", () => this.#read());
  }

  show(params) {
    const filter = requestFilter(params);
    const isOther = requestsHash(filter) !== requestsHash(this.#filter);
    this.#filter = filter;
    this.#shown = true;
    this.#isFirst = true;
    for (const name of [...NAMES, "show"]) this.#form.elements[name].value = filter[name] ?? "";
    if (isOther || this.#paused) this.#resume();
    if (isOther || !byId("request-list").tBodies[0].rows.length) this.#showRows([], "Asking the routers…");
    this.#read();
  }

  leave() {
    this.#shown = false;
    this.#stop();
  }

  updateStatus(status) {
    this.#status = status;
  }

  #submit(event) {
    event.preventDefault();
    const fields = this.#form.elements;
    const id = fields.id.value.trim();
    if (id) {
      location.hash = requestHash(id);
      fields.id.value = "";
      return;
    }
    const entered = [...NAMES, "show"].map((name) => [name, fields[name].value.trim()]);
    location.hash = requestsHash(requestFilter(new URLSearchParams(entered)));
  }

  #togglePause() {
    if (this.#paused) {
      this.#resume();
      this.#read();
      return;
    }
    this.#paused = true;
    this.#stop();
    setText(this.#pause, "Resume");
    byId("request-list-status").setAttribute("aria-live", "polite");
    setText(byId("request-list-status"), `Paused at ${clock(Date.now() / 1000)}: later requests are not shown.`);
  }

  #resume() {
    this.#paused = false;
    setText(this.#pause, "Pause");
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#aborter?.abort();
    this.#aborter = null;
  }

  async #read() {
    this.#stop();
    if (!this.#shown || this.#paused || document.hidden) return;
    const aborter = new AbortController();
    this.#aborter = aborter;
    try {
      const found = await requestJson("GET", `/admin/requests?${requestQuery(this.#filter)}`, aborter);
      // A screen reader is told what was asked for, not each change of the number.
      byId("request-list-status").setAttribute("aria-live", this.#isFirst ? "polite" : "off");
      this.#isFirst = false;
      this.#showRows(found.requests, this.#summary(found.requests.length, found.all_routers !== false));
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      // The rows that are there stay: they are still true.
      byId("request-list-status").setAttribute("aria-live", "polite");
      setText(byId("request-list-status"), `The requests cannot be read. ${error.message}`);
    }
    if (this.#aborter !== aborter) return;
    const interval = Object.keys(this.#filter).length ? FILTERED_INTERVAL : INTERVAL;
    this.#timer = setTimeout(() => this.#read(), interval);
  }

  #showRows(requests, text) {
    this.#rows.update(requests);
    byId("request-list").hidden = requests.length === 0;
    const status = byId("request-list-status");
    if (typeof text === "string") setText(status, text);
    else status.replaceChildren(...text);
  }

  #summary(number, ofAllRouters) {
    const isFiltered = Object.keys(this.#filter).length > 0;
    const what = filterAsText(this.#filter);
    if (number) {
      const some = number === MOST ? `The newest ${MOST} that are remembered` : `${plural(number, "request")} remembered`;
      const note = ofAllRouters ? "" : " Redis is down: they are those of the process that answers.";
      return `${some}${isFiltered ? `, each a ${what}` : ""}.${note}`;
    }
    if (!haveAllPublished()) return "Asking the routers…";
    if (!isFiltered || !ofAllRouters) return whyNone(true, this.#status, ofAllRouters);
    return [
      `No router remembers a ${what}. Others may be remembered: `,
      element("a", { href: "#requests" }, "show all"),
      ".",
    ];
  }
}
