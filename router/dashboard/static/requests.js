/** The newest requests on the overview, and what is said where none can be shown. */

import { byId, element } from "./dom.js";
import { plural } from "./format.js";
import { fillReasonTable } from "./reasons.js";
import { requestRows } from "./request_table.js";

const SHOWN = 12;
const PUBLISHED = 3000; // milliseconds after the page is opened until all routers have published what they remember

/** Returns `{update(document), updateStatus(status)}`. */
export function mountRequests() {
  const rows = requestRows(byId("requests"));
  let latest = null;
  let status = null;
  const show = () => {
    const shown = (latest ?? []).slice(0, SHOWN);
    rows.update(shown);
    byId("requests").hidden = shown.length === 0;
    byId("requests-empty").hidden = shown.length > 0;
    if (shown.length === 0) byId("requests-empty").replaceChildren(...whyNone(latest !== null && haveAllPublished(), status));
  };
  fillReasonTable(byId("reasons").tBodies[0]);
  show();
  setTimeout(show, PUBLISHED);
  return {
    update: ({ requests }) => {
      latest = requests;
      show();
    },
    updateStatus: (newest) => {
      status = newest;
      if (!latest?.length) show();
    },
  };
}

export function haveAllPublished() {
  return performance.now() >= PUBLISHED;
}

/** Why no request is shown: that there was none is said only where it is known. `asked`: the routers have answered. */
export function whyNone(asked, status, redisUp = status?.redis.up) {
  if (asked && status && !redisUp)
    return ["Redis is down, and the process that answers remembers no such request. Others may: each router’s log has its own."];
  if (!asked || !status) return ["Asking the routers…"];
  const ended = status.last_hour?.requests ?? 0;
  if (ended)
    return [
      `${plural(ended, "request")} ended in the last hour, but no router remembers one: the processes were started since. The logs have them.`,
    ];
  return [
    "No request has ended in the last hour, and no router remembers an earlier one. ",
    element("a", { href: "#playground" }, "Send one from the playground."),
  ];
}
