/** Messages at the top of the page, and announcements for screen readers. */

import { byId, element, setText } from "./dom.js";

const MOST = 3;
const SHOWN_FOR = 8000;

/** Shows a message. A `bad` one stays until it is closed. */
export function notify(text, { bad = false, link = null } = {}) {
  const notice = element(
    "div",
    { class: bad ? "notice bad" : "notice", role: bad ? "alert" : "status" },
    element("p", {}, text, link ? [" ", element("a", { href: link.href }, link.text)] : []),
    element(
      "button",
      { type: "button", class: "button quiet", "aria-label": "Close the message", click: () => notice.remove() },
      "✕",
    ),
  );
  const notices = byId("notices");
  notices.append(notice);
  while (notices.childElementCount > MOST) notices.firstElementChild.remove();
  if (!bad) setTimeout(() => notice.remove(), SHOWN_FOR);
}

/** Says a change that the page shows elsewhere. */
export function announce(text) {
  setText(byId("announcer"), text);
}
