/** Small marks: the cache status of a response, bars that show a share. */

import { element, setText } from "./dom.js";
import { percent } from "./format.js";

const TONES = { HIT: "hit", MISS: "miss", COALESCED: "coalesced", STALE: "stale", BYPASS: "bypass" };

/** The mark of a value of X-Cache; a dash without one. */
export function cacheBadge(cache) {
  const name = cache?.toUpperCase();
  return name ? element("span", { class: `badge tone-${TONES[name] ?? "miss"}` }, name) : "–";
}

/**
 * A bar for a share from 0 to 1 with its text, or only the text where the share is unknown; `high` is the share from
 * which it is shown as a warning. `role`: of ARIA; `progressbar` for what comes to an end.
 */
export class ShareBar {
  node;
  #meter;
  #text = element("span", { class: "share-text" });
  #high;

  constructor(label, { high = Infinity, role = "meter" } = {}) {
    this.#high = high;
    this.#meter = element(
      "span",
      { class: "share", role, "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" },
      element("span", { class: "share-fill" }),
    );
    this.node = element("span", { class: "share-row" }, this.#meter, this.#text);
  }

  update(share, text = percent(share)) {
    const known = typeof share === "number";
    const shown = known ? Math.min(Math.max(share, 0), 1) : 0;
    this.#meter.hidden = !known;
    this.#meter.setAttribute("aria-valuenow", Math.round(shown * 100));
    this.#meter.setAttribute("aria-valuetext", text);
    this.#meter.firstElementChild.style.setProperty("--share", shown);
    this.#meter.classList.toggle("high", known && share >= this.#high);
    setText(this.#text, text);
  }
}
