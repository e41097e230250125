/** Explains why a request hits or misses: a form for its body, and the result. */

import { requestJson } from "./api.js";
import { cacheBadge } from "./badges.js";
import { byId, element } from "./dom.js";
import { count } from "./format.js";
import { reasonInWords } from "./reasons.js";

const EXAMPLE = '{"model": "llama", "messages": [{"role": "user", "content": "Tell me about the sea."}]}';

export function mountExplain() {
  const form = byId("explain-form");
  form.elements.body.placeholder = EXAMPLE;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    explain(form);
  });
}

async function explain(form) {
  const { tenant, path, body } = form.elements;
  const result = byId("explain-result");
  try {
    JSON.parse(body.value);
  } catch (error) {
    result.replaceChildren(element("p", { class: "form-error" }, `The body is not JSON: ${error.message}`));
    return;
  }
  result.replaceChildren(element("p", { class: "muted" }, "Comparing…"));
  try {
    // The body is inserted as it was pasted: the order and the spelling of its numbers stay.
    const question = `{"tenant":${JSON.stringify(tenant.value.trim())},"path":${JSON.stringify(path.value)},"body":${body.value}}`;
    result.replaceChildren(...explanation(await requestJson("POST", "/admin/cache/explain", { body: question })));
  } catch (error) {
    result.replaceChildren(element("p", { class: "form-error" }, error.message));
  }
}

function explanation({ result, reason, why, key, parts, model, task, state, entry, nearest, differs }) {
  const stored = entry ? element("p", {}, element("a", { href: entryHash(key) }, "Open the entry")) : null;
  return [
    element("h3", { class: "verdict" }, cacheBadge(result), reason ? [" ", element("code", {}, reason)] : []),
    element("p", {}, why),
    reason ? element("p", { class: "muted" }, reasonInWords({ cache: result, reason, status: 200 })) : null,
    stored,
    nearest?.key ? nearestContent(nearest, differs) : null,
    element("h3", {}, "The request’s key"),
    element("code", { class: "key" }, key),
    element(
      "table",
      { class: "cards" },
      element("caption", { class: "visually-hidden" }, "Parts of the key"),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["Part", "Value", "Made of"].map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      element(
        "tbody",
        {},
        parts.map((part) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, part.part),
            element("td", { "data-label": "Value" }, element("code", {}, part.value)),
            element("td", { "data-label": "Made of" }, part.made_of),
          ),
        ),
      ),
    ),
    element("p", { class: "small muted" }, `Model ${model}, task ${task}${state ? `; at the key: ${state}` : ""}.`),
  ].filter(Boolean);
}

function nearestContent({ key, looked_at: compared, everything }, differs) {
  return element(
    "div",
    { class: "nearest" },
    element("h3", {}, "The nearest entry"),
    element("p", {}, element("a", { href: entryHash(key) }, element("code", { class: "key" }, key))),
    element("p", {}, "It differs in:"),
    element(
      "ul",
      {},
      differs.map((part) => element("li", {}, part)),
    ),
    element(
      "p",
      { class: "small muted" },
      `${count(compared)} entries of the tenant compared${everything ? "" : ", not all of them"}.`,
    ),
  );
}

function entryHash(key) {
  return `#cache/entry/${encodeURIComponent(key)}`;
}
