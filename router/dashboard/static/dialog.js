/** Asks for a confirmation in the page's one dialog. The browser keeps the focus in it and gives it back. */

import { byId, element } from "./dom.js";

/**
 * Resolves to whether the action was confirmed. `lines`: what it does; `warning`: what makes it risky now;
 * `typed`: a word that must be typed first.
 */
export function confirm({ title, lines, action, warning = null, danger = false, typed = null }) {
  const dialog = byId("dialog");
  const confirmButton = element(
    "button",
    { type: "submit", value: "yes", class: danger ? "button danger" : "button primary", disabled: typed !== null },
    action,
  );
  const form = element(
    "form",
    { method: "dialog", class: "stack" },
    element("h2", { id: "dialog-title" }, title),
    lines.map((line) => element("p", {}, line)),
    warning ? element("p", { class: "warning" }, warning) : null,
    typed === null ? null : typedField(typed, confirmButton),
    element(
      "div",
      { class: "actions end" },
      element("button", { type: "submit", value: "no", class: "button", formnovalidate: true }, "Cancel"),
      confirmButton,
    ),
  );
  dialog.replaceChildren(form);
  dialog.showModal();
  (form.querySelector("input") ?? confirmButton).focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", ({ submitter }) => resolve(submitter === confirmButton));
    // Escape. Browsers send the event some time after they close the dialog; by then it may show another question.
    const onClose = () => {
      if (dialog.open && form.isConnected) return;
      dialog.removeEventListener("close", onClose);
      resolve(false);
    };
    dialog.addEventListener("close", onClose);
  });
}

function typedField(word, button) {
  const input = element("input", {
    id: "dialog-typed",
    autocomplete: "off",
    spellcheck: "false",
    input: () => (button.disabled = input.value !== word),
    // The first submit button is Cancel: without this, Enter would choose it.
    keydown: (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      button.click();
    },
  });
  return element(
    "label",
    { class: "field", for: "dialog-typed" },
    element("span", {}, "Type ", element("strong", {}, word), " to confirm"),
    input,
  );
}
