/** The fields of a filter for entries: tenant, model, system prompt, documents. */

import { element } from "./dom.js";

const HASH = "[0-9a-f]{16}";
const NAME = "[a-z0-9._\\-]{1,64}";
export const FIELDS = [
  { name: "tenant", label: "Tenant", pattern: NAME, list: "tenant-names", hint: "a tenant’s name" },
  { name: "model", label: "Model", pattern: NAME, list: "model-names", hint: "a model’s name" },
  { name: "system", label: "System prompt", pattern: HASH, hint: "its hash in the key" },
  { name: "rag", label: "Documents (all)", pattern: HASH, hint: "their hash in the key" },
  { name: "document", label: "One document", hint: "its id, text or hash" },
];

export function addFilterFields(parent) {
  parent.append(
    ...FIELDS.map(({ name, label, pattern, list, hint }) =>
      element(
        "label",
        { class: "field" },
        element("span", {}, label),
        element("input", {
          name,
          pattern,
          list,
          title: hint,
          placeholder: hint,
          autocomplete: "off",
          autocapitalize: "none",
          spellcheck: "false",
        }),
      ),
    ),
  );
}

/** The fields that are filled in. */
export function readFilter(form) {
  return Object.fromEntries(
    FIELDS.map(({ name }) => [name, form.elements[name].value.trim()]).filter(([, value]) => value),
  );
}

export function writeFilter(form, params) {
  for (const { name } of FIELDS) form.elements[name].value = params.get(name) ?? "";
}

export function filterInWords(filter) {
  return FIELDS.filter(({ name }) => filter[name])
    .map(({ name, label }) => `${label.toLowerCase()} ${filter[name]}`)
    .join(", ");
}

/** The address of the listing with this filter. */
export function listingHash(filter) {
  const query = new URLSearchParams(filter).toString();
  return query ? `#cache?${query}` : "#cache";
}
