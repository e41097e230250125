/** Tenants and their API keys: what they used in some days, what was refused, and what is left of their budgets. */

import { requestJson } from "./api.js";
import { byId, cell, element, setText } from "./dom.js";
import { clock, count, dateTime, duration, percent, plural, UNKNOWN } from "./format.js";
import { requestsHash } from "./request_list.js";

const NO_KEY = "-"; // in place of the id of a key
const LOW = 0.1; // the share of a budget below which it is a warning

export class TenantList {
  #days = byId("tenants-days");
  #open = new Set();
  #aborter = null;

  constructor() {
    this.#days.addEventListener("change", () => {
      location.hash = `#tenants?days=${this.#days.value}`;
    });
    byId("tenants-refresh").addEventListener("click", () => this.#read());
  }

  show(params) {
    const days = params.get("days");
    const known = [...this.#days.options].some(({ value }) => value === days);
    this.#days.value = known ? days : "30";
    this.#read();
  }

  async #read() {
    this.#aborter?.abort();
    this.#aborter = new AbortController();
    const { signal } = this.#aborter;
    const status = byId("tenants-status");
    if (byId("tenants").hidden) setText(status, "Adding up…");
    try {
      const found = await requestJson("GET", `/admin/tenants?days=${this.#days.value}`, { signal });
      setText(status, summary(found));
      byId("tenants").tBodies[0].replaceChildren(...found.tenants.flatMap((tenant) => this.#rows(tenant)));
      byId("tenants").hidden = found.tenants.length === 0;
      const advice = whatToDo(found.tenants, document.documentElement.dataset.authMode);
      byId("tenants-empty").hidden = advice.length === 0;
      byId("tenants-empty").replaceChildren(...advice.map((text) => element("p", { class: "muted" }, text)));
    } catch (error) {
      if (error.name === "AbortError") return;
      // The rows that are there stay, with the time of their reading.
      setText(status, `The usage cannot be read. ${error.message}`);
    }
  }

  #rows(tenant) {
    const keys = tenant.keys.map((key) => keyRow(tenant.tenant, key));
    const shows = (open) => {
      for (const row of keys) row.hidden = !open;
    };
    shows(this.#open.has(tenant.tenant));
    const number = tenant.keys.filter(({ key }) => key !== NO_KEY).length;
    if (!number) return [tenantRow(tenant, null)]; // its requests without a key are all that it has
    const toggle = element(
      "button",
      {
        type: "button",
        class: "button small",
        "aria-expanded": String(this.#open.has(tenant.tenant)),
        "aria-label": `${plural(number, "key")} of ${tenant.tenant}`,
        click: () => {
          if (!this.#open.delete(tenant.tenant)) this.#open.add(tenant.tenant);
          const open = this.#open.has(tenant.tenant);
          toggle.setAttribute("aria-expanded", String(open));
          shows(open);
        },
      },
      plural(number, "key"),
    );
    return [tenantRow(tenant, toggle), ...keys];
  }
}

function tenantRow(tenant, toggle) {
  const note = tenant.configured ? null : element("span", { class: "small muted" }, "not configured any more");
  return element(
    "tr",
    { "data-tenant": tenant.tenant },
    element("th", { scope: "row" }, `${tenant.tenant} `, toggle, note),
    ...numbers(tenant, tenant.gpu_seconds_saved),
    cell("Budget left", {}, budgetParts(tenant.budgets)),
    cell("Last used", {}, lastUsed(tenant)),
    cell("List", {}, requestsLink({ tenant: tenant.tenant }, `List requests of tenant ${tenant.tenant}`)),
  );
}

function keyRow(tenant, key) {
  const isKey = key.key !== NO_KEY;
  const name = isKey ? (key.name ?? `key ${key.key}`) : "without a key";
  const notes = [key.name ? key.key : null, key.source, ["active", "no key"].includes(key.status) ? null : key.status];
  return element(
    "tr",
    { class: "of-key", "data-key": key.key },
    element("th", { scope: "row" }, name, element("span", { class: "small muted" }, notes.filter(Boolean).join(", "))),
    ...numbers(key, null),
    cell("Budget left", {}, UNKNOWN),
    cell("Last used", {}, lastUsed(key)),
    cell("List", {}, isKey ? requestsLink({ tenant, key: key.key }, `List requests of key ${key.key}`) : UNKNOWN),
  );
}

function numbers(sums, secondsSaved) {
  const tokens = sums.prompt_tokens + sums.completion_tokens + sums.estimated_tokens;
  return [
    cell("Requests", { class: "number" }, count(sums.requests)),
    cell("Hits", { class: "number" }, sums.requests ? `${count(sums.hits)} (${percent(sums.hits / sums.requests)})` : count(0)),
    cell("Refused", {}, refusedParts(sums)),
    cell("Tokens", { class: "number" }, count(tokens)),
    cell("GPU time", { class: "number" }, duration(sums.gpu_seconds)),
    cell("Saved", {}, savedText(sums.saved_tokens, secondsSaved)),
  ];
}

/** The number, and below it the reasons with most requests first. */
function refusedParts({ refused, refused_by: reasons }) {
  const sorted = Object.entries(reasons).sort(([, one], [, other]) => other - one);
  const lines = sorted.map(([reason, number]) => element("span", { class: "small muted" }, `${count(number)} ${reason}`));
  return element("span", {}, element("span", { "data-tone": refused ? "warn" : null }, count(refused)), lines);
}

export function savedText(tokens, seconds) {
  if (!tokens && !seconds) return UNKNOWN;
  const parts = [`${count(tokens)} tokens`, seconds ? duration(seconds) : null];
  return parts.filter(Boolean).join(", ");
}

function budgetParts(budgets) {
  if (!budgets.length) return "no budget";
  return element(
    "span",
    {},
    budgets.map((budget) => {
      const share = budget.remaining / budget.limit;
      const tone = share <= 0 ? "bad" : share < LOW ? "warn" : null;
      return element("span", { class: "small", "data-tone": tone, title: `until ${budget.resets_at}` }, budgetText(budget));
    }),
  );
}

/** "1,200 of 5,000 tokens a day" */
export function budgetText({ budget, limit, remaining }) {
  const [what, period] = budget.split("_per_");
  const amount = what === "tokens" ? (value) => count(value) : (value) => duration(value);
  const unit = what === "tokens" ? "tokens" : "GPU time";
  return `${remaining <= 0 ? "none" : amount(remaining)} of ${amount(limit)} ${unit} a ${period}`;
}

/** Keys have a time; without keys, the last day of the period is known. */
function lastUsed({ last_used: at, last_day: day }) {
  if (at !== null) return dateTime(at);
  return day ?? "not in this period";
}

function requestsLink(filter, label) {
  return element("a", { href: requestsHash(filter), "aria-label": label }, "List requests");
}

function summary({ from, to, tenants }) {
  const days = from === to ? to : `${from} to ${to}`;
  return `${plural(tenants.length, "tenant")}, ${days}, read at ${clock(Date.now() / 1000)}.`;
}

/** What is missing, and how to get it. Pure. */
export function whatToDo(tenants, authMode) {
  const advice = [];
  if (!tenants.some(({ requests, refused }) => requests || refused))
    advice.push("No request was counted in this period. Send one from the playground, or choose a longer period.");
  const configured = tenants.filter(({ configured }) => configured);
  if (authMode === "open" && configured.length <= 1)
    advice.push(
      "Without keys, all requests are of one tenant. To tell tenants apart, set auth.mode and add [[tenant]] tables: docs/limits.md.",
    );
  const keyless = configured.filter(({ keys }) => !keys.some(({ status }) => status === "active"));
  if (authMode === "keys" && keyless.length)
    advice.push(
      `Without a valid key: ${keyless.map(({ tenant }) => tenant).join(", ")}. Make one with: roundhouse keys new --tenant ${keyless[0].tenant} --name NAME`,
    );
  if (authMode === "keys" && !configured.length)
    advice.push("No tenant is configured: each [[tenant]] table of the configuration is one, see docs/limits.md.");
  return advice;
}
