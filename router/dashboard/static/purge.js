/** Purges entries by filter: first a preview, then a confirmation that must be typed. */

import { requestJson } from "./api.js";
import { confirm } from "./dialog.js";
import { byId, element } from "./dom.js";
import { filterInWords, listingHash, readFilter } from "./filters.js";
import { plural } from "./format.js";

const COUNTED = 1000; // the largest page of a listing

export function mountPurge() {
  const form = byId("purge-form");
  const everything = form.elements.all;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    preview(form);
  });
  form.addEventListener("input", () => {
    byId("purge-preview").replaceChildren();
    for (const input of form.querySelectorAll("[data-filter-fields] input")) input.disabled = everything.checked;
  });
}

async function preview(form) {
  const filter = form.elements.all.checked ? { all: true } : readFilter(form);
  if (!Object.keys(filter).length) {
    show("form-error", "Fill in at least one field, or choose everything.");
    return;
  }
  show("muted", "Counting…");
  try {
    offer(form, filter, await countMatching(filter));
  } catch (error) {
    show("form-error", error.message);
  }
}

/** How many entries match, in words. */
async function countMatching(filter) {
  if (filter.all) return entryCount((await requestJson("GET", "/admin/cache/stats")).total.entries);
  const query = new URLSearchParams({ ...filter, limit: COUNTED });
  const page = await requestJson("GET", `/admin/cache/entries?${query}`);
  return page.cursor === null ? entryCount(page.entries.length) : `more than ${entryCount(COUNTED)}`;
}

function entryCount(number) {
  return plural(number, "entry", "entries");
}

function offer(form, filter, amount) {
  const what = filter.all ? "of all tenants and models" : `with ${filterInWords(filter)}`;
  const parts = [
    element(
      "p",
      {},
      `Stored ${what}: `,
      element("strong", {}, amount),
      ". ",
      filter.all ? "" : element("a", { href: listingHash(filter) }, "List"),
    ),
  ];
  if (amount === entryCount(0))
    parts.push(element("p", { class: "muted" }, "A purge still keeps generations in progress from being stored."));
  const word = filter.all ? "everything" : "purge";
  const button = element(
    "button",
    { type: "button", class: "button danger", click: () => ask(form, filter, amount, what, word) },
    "Purge…",
  );
  byId("purge-preview").replaceChildren(...parts, element("div", { class: "actions" }, button));
}

async function ask(form, filter, amount, what, word) {
  const confirmed = await confirm({
    title: `Purge ${amount}?`,
    lines: [`All entries ${what} are deleted. It cannot be undone.`],
    action: "Purge",
    danger: true,
    typed: word,
  });
  if (!confirmed) return;
  show("muted", "Purging…");
  try {
    const { entries, claims } = await requestJson("POST", "/admin/cache/purge", { body: JSON.stringify(filter) });
    form.reset();
    form.dispatchEvent(new Event("input"));
    show("done", `Purged ${entryCount(entries)} and ${plural(claims, "generation")} in progress.`);
  } catch (error) {
    show("form-error", `The purge may be incomplete; repeat it. ${error.message}`);
  }
}

function show(kind, text) {
  byId("purge-preview").replaceChildren(
    element("p", { class: kind, role: kind === "form-error" ? "alert" : "status" }, text),
  );
}
