/** The playground: sends a prompt as a client would, and sends it again to show the hit beside it. */

import { RequestError, send, errorMessage } from "./api.js";
import { byId, element, setEnabled, setText } from "./dom.js";
import { milliseconds } from "./format.js";
import { Answer } from "./playground_answer.js";
import { asCurl, asPython } from "./playground_code.js";
import { ask, tenantHeaders } from "./playground_request.js";

const EXAMPLE = "Write a Python function that reverses a list, and explain it in two sentences.";

const TENANT_FIELDS = {
  keys: {
    label: "API key of a tenant",
    type: "password",
    hint: "Kept in this page’s memory only, and gone when you leave it.",
  },
  header: { label: "Tenant (X-Tenant-ID)", type: "text", hint: "A proxy in front of the router may replace it." },
};

export class Playground {
  #mode = document.documentElement.dataset.authMode;
  #form = byId("playground-form");
  #answers = byId("playground-answers");
  #request = null;
  #last = null; // the body of the first answer, and the answer
  #send = element("button", { type: "submit", class: "button primary" }, "Send");
  #again = element(
    "button",
    { type: "button", class: "button", "aria-disabled": "true", click: () => this.#askAgain() },
    "Ask again",
  );
  #stop = element(
    "button",
    { type: "button", class: "button", "aria-disabled": "true", click: () => this.#request?.abort() },
    "Stop",
  );
  #copied = element("span", { class: "muted small", role: "status" });
  #code = element("pre", { class: "code", tabindex: "0", hidden: true, "aria-label": "The request as code" });
  #problem = element("p", { class: "form-error", role: "alert", hidden: true });
  #modelsLoaded = false;

  constructor() {
    this.#form.append(...this.#fields());
    this.#form.elements.prompt.value = EXAMPLE; // as a child of the field, it would be a part of the label's text
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#start();
    });
    this.#form.elements.tenant?.addEventListener("change", () => this.#loadModels());
    this.#showEmpty();
  }

  show() {
    if (!this.#modelsLoaded) this.#loadModels();
  }

  #fields() {
    const field = TENANT_FIELDS[this.#mode];
    const tenant =
      field &&
      labelled(
        field.label,
        element("input", {
          name: "tenant",
          type: field.type,
          autocomplete: "off",
          spellcheck: "false",
          required: true,
        }),
        field.hint,
      );
    return [
      element("h2", { class: "visually-hidden" }, "Request"),
      tenant ?? null,
      labelled("Model", element("select", { name: "model", required: true })),
      labelled("System prompt", element("textarea", { name: "system", rows: "2", placeholder: "optional" })),
      labelled("Prompt", element("textarea", { name: "prompt", rows: "6", required: true })),
      element(
        "div",
        { class: "field-row" },
        labelled(
          "Temperature",
          element("input", {
            name: "temperature",
            type: "number",
            min: "0",
            max: "2",
            step: "any",
            placeholder: "default",
          }),
        ),
        labelled("Seed", element("input", { name: "seed", type: "number", step: "1", placeholder: "none" })),
        labelled(
          "Max. tokens",
          element("input", { name: "max_tokens", type: "number", min: "1", step: "1", placeholder: "default" }),
        ),
      ),
      this.#problem,
      element("div", { class: "actions" }, this.#send, this.#again, this.#stop),
      element(
        "div",
        { class: "actions" },
        this.#copyButton("Copy as curl", asCurl),
        this.#copyButton("Copy as Python", asPython),
        this.#copied,
      ),
      this.#code,
    ].filter(Boolean);
  }

  #headers() {
    return tenantHeaders(this.#mode, this.#form.elements.tenant?.value.trim());
  }

  async #loadModels() {
    const select = this.#form.elements.model;
    const chosen = select.value;
    if (this.#mode !== "open" && !this.#form.elements.tenant.value) {
      select.replaceChildren(
        element(
          "option",
          { value: "" },
          this.#mode === "keys" ? "Enter a key to list the models" : "Enter a tenant to list the models",
        ),
      );
      return;
    }
    try {
      const response = await send("/v1/models", { headers: this.#headers(), credentials: "omit", cache: "no-store" });
      if (!response.ok) throw new RequestError(await errorMessage(response), response.status);
      const names = (await response.json()).data.map(({ id }) => id);
      select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      if (names.includes(chosen)) select.value = chosen;
      else if (names.includes("auto")) select.value = "auto";
      this.#modelsLoaded = true;
      this.#showProblem("");
    } catch (error) {
      this.#showProblem(`The models cannot be listed. ${error.message}`);
    }
  }

  #body() {
    const { model, system, prompt, temperature, seed, max_tokens: maxTokens } = this.#form.elements;
    const messages = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    const numbers = [
      ["temperature", temperature],
      ["seed", seed],
      ["max_tokens", maxTokens],
    ].filter(([, input]) => input.value !== "");
    return {
      model: model.value,
      messages: [...messages, { role: "user", content: prompt.value }],
      stream: true,
      stream_options: { include_usage: true },
      ...Object.fromEntries(numbers.map(([name, input]) => [name, input.valueAsNumber])),
    };
  }

  #copyButton(label, write) {
    const copy = async () => {
      const tenant = this.#mode === "header" ? this.#form.elements.tenant.value.trim() : "";
      const text = write(location.origin, this.#body(), this.#mode, tenant);
      this.#code.hidden = false;
      setText(this.#code, text);
      setText(this.#copied, await copyText(text));
    };
    return element("button", { type: "button", class: "button small", click: copy }, label);
  }

  async #start() {
    if (this.#request) return;
    const body = this.#body();
    const answer = new Answer("First answer");
    this.#answers.replaceChildren(answer.node);
    this.#last = { body, answer };
    await this.#run(body, answer);
  }

  async #askAgain() {
    if (this.#request || !this.#last) return;
    const answer = new Answer("Second answer");
    this.#answers.replaceChildren(this.#last.answer.node, answer.node);
    await this.#run(this.#last.body, answer);
    const comparison = compareAnswers(this.#last.answer, answer);
    if (comparison) answer.compare(comparison);
  }

  async #run(body, answer) {
    this.#setBusy(new AbortController());
    try {
      const total = await ask(body, this.#headers(), this.#request.signal, answer);
      answer.end("complete", total);
    } catch (error) {
      const stopped = error.name === "AbortError";
      if (!stopped) answer.problem(error instanceof RequestError ? error.message : "The stream broke off.");
      answer.end(stopped ? "stopped" : "failed");
    } finally {
      this.#setBusy(null);
    }
  }

  #setBusy(request) {
    this.#request = request;
    const busy = request !== null;
    setEnabled(this.#send, !busy);
    setEnabled(this.#again, !busy && this.#last !== null);
    setEnabled(this.#stop, busy);
  }

  #showProblem(text) {
    this.#problem.hidden = !text;
    this.#problem.textContent = text;
  }

  #showEmpty() {
    this.#answers.replaceChildren(
      element(
        "p",
        { class: "empty card" },
        "Write a prompt and send it. The first answer is generated, unless it is stored already; “Ask again” sends the same request and shows the hit beside it.",
      ),
    );
  }
}

/** Copies, and says what came of it. Without TLS, browsers let only pages of their own machine copy. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied.";
  } catch {
    return "The browser does not let this page copy; select it below.";
  }
}

function labelled(label, input, hint = null) {
  return element(
    "label",
    { class: "field" },
    element("span", {}, label),
    input,
    hint ? element("small", { class: "muted" }, hint) : null,
  );
}

function compareAnswers(first, second) {
  const [before, after] = [first.firstTokenMs, second.firstTokenMs];
  if (second.cache !== "HIT" || before === null || after === null) return null;
  if (first.cache === "HIT" || after >= before) return `First token in ${milliseconds(after)}, from the cache.`;
  return `First token in ${milliseconds(after)} in place of ${milliseconds(before)}: ${(before / after).toFixed(before / after < 10 ? 1 : 0)} times sooner, without an engine.`;
}
