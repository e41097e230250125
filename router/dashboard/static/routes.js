/** The view that the address names: #overview, #cache?tenant=acme, #cache/entry/KEY, #cache/explain, #playground, #requests?tenant=acme, #request/ID, #tenants?days=7, #changes. */

const VIEWS = ["overview", "cache", "playground", "requests", "request", "tenants", "changes"];
const TABS = ["entries", "entry", "explain", "purge"];

export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/");
  const [view, tab] = parts;
  const detail = parts[view === "request" ? 1 : 2];
  return {
    view: VIEWS.includes(view) ? view : "overview",
    tab: TABS.includes(tab) ? tab : "entries",
    detail: detail === undefined ? null : decode(detail),
    params: new URLSearchParams(query),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not an address that this page made
  }
}

/** Shows the view and marks its links. Returns the route. */
export function showRoute(hash) {
  const route = parseRoute(hash);
  for (const view of VIEWS) document.getElementById(`view-${view}`).hidden = view !== route.view;
  for (const tab of TABS) document.getElementById(`tab-${tab}`).hidden = tab !== route.tab;
  const current = { view: route.view === "request" ? "requests" : route.view, tab: route.tab === "entry" ? "entries" : route.tab };
  for (const kind of ["view", "tab"]) {
    for (const link of document.querySelectorAll(`a[data-${kind}]`)) {
      if (link.dataset[kind] === current[kind]) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  return route;
}
