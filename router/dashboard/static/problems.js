/** What is wrong, in the router's own sentences, the worst first; each leads to what it is about. */

import { byId, element, KeyedList, setText } from "./dom.js";
import { age } from "./format.js";
import { requestsHash } from "./request_list.js";

const WORDS = { critical: "Critical", warning: "Warning", info: "Note" };
const MOST = 8;

export function mountProblems() {
  const list = new KeyedList(
    byId("problems"),
    ({ kind, subject, words }) => (subject ? `${kind}/${subject}` : words),
    (problem) => new ProblemRow(problem),
  );
  return ({ router_now: now, problems = [] }) => {
    list.update(problems.slice(0, MOST).map((problem) => ({ ...problem, now })));
    const more = problems.length - MOST;
    byId("problems").hidden = problems.length === 0;
    byId("problems-more").hidden = more <= 0;
    setText(byId("problems-more"), `${more} more: see the tables below, or roundhouse status.`);
  };
}

class ProblemRow {
  #severity = element("span", { class: "severity" });
  #words;
  #age = element("span", { class: "small" });

  constructor({ kind, subject }) {
    this.#words = wordsNode(kind, subject);
    this.node = element("li", {}, this.#severity, " ", element("span", {}, this.#words, " ", this.#age));
  }

  update({ severity, words, since, now }) {
    this.node.dataset.severity = severity in WORDS ? severity : "critical";
    setText(this.#severity, WORDS[severity] ?? WORDS.critical);
    setText(this.#words, words);
    setText(this.#age, typeof since === "number" ? `(for ${age(now - since)})` : "");
  }
}

function wordsNode(kind, subject) {
  if (kind === "engine") return element("a", { href: "#overview", click: (event) => showEngine(event, subject) });
  if (kind === "tenant" && subject !== "none") return element("a", { href: requestsHash({ tenant: subject, show: "refused" }) });
  return element("span");
}

function showEngine(event, name) {
  const row = [...byId("engines").tBodies[0].rows].find(({ dataset }) => dataset.engine === name);
  if (!row) return;
  event.preventDefault(); // the fragment names the view
  row.scrollIntoView({ block: "center" });
  row.focus();
}
