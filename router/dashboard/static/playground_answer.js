/** An answer in the playground: status, timings, headers, and the text as it comes. */

import { cacheBadge } from "./badges.js";
import { appendAll, element, setText } from "./dom.js";
import { count, milliseconds, UNKNOWN } from "./format.js";
import { renderMarkdown } from "./markdown.js";

const LONGEST_TEXT = 200_000;
const RENDER_INTERVAL = 150; // milliseconds between two renderings of a text that grows

export class Answer {
  node;
  cache = null;
  firstTokenMs = null;
  #badge = element("span", {}, "");
  #state = element("span", { class: "muted", role: "status" }, "Waiting for the response…");
  #timings = element("dl", { class: "facts" });
  #headers = element("tbody");
  #rendered = element("div", { class: "answer markdown", tabindex: "0", role: "region", "aria-label": "The answer" });
  #text = element("pre", { class: "answer", tabindex: "0", hidden: true, "aria-label": "The text of the answer" });
  #toggle = element(
    "button",
    { type: "button", class: "button small", "aria-pressed": "false", click: () => this.#switchView() },
    "Plain text",
  );
  #timer = null;
  #pause = RENDER_INTERVAL;
  #note = element("p", { class: "comparison", hidden: true });
  #facts = { status: null, total: null, usage: null };

  constructor(title) {
    const table = element(
      "table",
      { class: "plain headers" },
      element("caption", {}, "Response headers"),
      element(
        "thead",
        { class: "visually-hidden" },
        element("tr", {}, element("th", { scope: "col" }, "Header"), element("th", { scope: "col" }, "Value")),
      ),
      this.#headers,
    );
    this.node = element(
      "section",
      { class: "card answer-card", "aria-label": title },
      element("div", { class: "heading-row" }, element("h2", {}, title), this.#badge, this.#toggle),
      this.#state,
      this.#timings,
      this.#note,
      this.#rendered,
      this.#text,
      table,
    );
    this.#showTimings();
  }

  response(status, headers) {
    this.cache = Object.fromEntries(headers)["x-cache"] ?? null;
    this.#facts.status = status;
    this.#badge.replaceChildren(cacheBadge(this.cache));
    this.#headers.replaceChildren(
      ...headers.map(([name, value]) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, element("code", {}, name)),
          element("td", {}, headerValue(name, value)),
        ),
      ),
    );
    setText(this.#state, "Receiving…");
    this.#showTimings();
  }

  text(piece, ms) {
    if (this.firstTokenMs === null) {
      this.firstTokenMs = ms;
      this.#showTimings();
    }
    const room = LONGEST_TEXT - this.#text.textContent.length;
    if (room > 0) this.#text.append(piece.length > room ? `${piece.slice(0, room)}…` : piece);
    this.#timer ??= setTimeout(() => this.#render(), this.#pause);
  }

  #render() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const started = performance.now();
    const rendered = document.createDocumentFragment();
    appendAll(rendered, renderMarkdown(this.#text.textContent));
    this.#rendered.replaceChildren(rendered);
    // A long text is rendered less often, so that the page stays responsive.
    this.#pause = Math.max(RENDER_INTERVAL, 10 * (performance.now() - started));
  }

  #switchView() {
    const plain = this.#text.hidden;
    this.#text.hidden = !plain;
    this.#rendered.hidden = plain;
    this.#toggle.setAttribute("aria-pressed", String(plain));
  }

  usage(usage) {
    this.#facts.usage = usage;
  }

  problem(message) {
    this.#text.after(element("p", { class: "form-error", role: "alert" }, message));
  }

  /** `how`: complete, stopped or failed. `total` in milliseconds, if the response ended. */
  end(how, total = null) {
    this.#facts.total = total;
    this.#render();
    setText(this.#state, { complete: "Complete.", stopped: "Stopped.", failed: "Failed." }[how]);
    this.#showTimings();
  }

  compare(text) {
    this.#note.hidden = false;
    setText(this.#note, text);
  }

  #showTimings() {
    const { status, total, usage } = this.#facts;
    const values = [
      ["Status", status === null ? UNKNOWN : String(status)],
      ["First token", milliseconds(this.firstTokenMs)],
      ["Total", milliseconds(total)],
      ["Tokens", usage ? `${count(usage.prompt_tokens)} + ${count(usage.completion_tokens)}` : UNKNOWN],
    ];
    this.#timings.replaceChildren(
      ...values.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
  }
}

function headerValue(name, value) {
  if (name !== "x-cache-key") return value;
  return element("a", { href: `#cache/entry/${encodeURIComponent(value)}` }, element("code", {}, value));
}
