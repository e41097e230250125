/** Starts the page: connects the views with the stream of events and with the address. */

import { session, signOut } from "./api.js";
import { mountBatches } from "./batches.js";
import { ChangeList } from "./changes.js";
import { byId, element, setText } from "./dom.js";
import { mountEngines } from "./engines.js";
import { EntryListing } from "./entries.js";
import { showEntry } from "./entry.js";
import { mountExplain } from "./explain.js";
import { addFilterFields, listingHash } from "./filters.js";
import { mountGpus } from "./gpus.js";
import { mountHour } from "./hour.js";
import { LiveEvents } from "./live.js";
import { announce, notify } from "./notices.js";
import { mountOverview } from "./overview.js";
import { Playground } from "./playground.js";
import { mountProblems } from "./problems.js";
import { mountPurge } from "./purge.js";
import { showRequest } from "./request_detail.js";
import { RequestList } from "./request_list.js";
import { mountRequests } from "./requests.js";
import { showRoute } from "./routes.js";
import { TenantList } from "./tenants.js";
import { mountTheme } from "./theme.js";

const STATES = {
  live: "Live",
  reconnecting: "Reconnecting…",
  paused: "Paused",
  ended: "Signed out",
};

function start() {
  for (const fields of document.querySelectorAll("[data-filter-fields]")) addFilterFields(fields);
  mountTheme(byId("theme"), byId("theme-text"));
  mountExplain();
  mountPurge();
  const requestList = new RequestList();
  const events = new LiveEvents(eventHandler(requestList), connectionHandler());
  followAddress(new EntryListing(), new Playground(), requestList, new TenantList(), new ChangeList());
  byId("sign-out").addEventListener("click", () => signOut().catch((error) => notify(error.message, { bad: true })));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment names the view
    byId("main").focus();
  });
  session.addEventListener("ended", () => endSession(events), { once: true });
  events.start();
}

function eventHandler(requestList) {
  const overview = mountOverview();
  const problems = mountProblems();
  const engines = mountEngines();
  const gpus = mountGpus();
  const hour = mountHour(byId("figures"), byId("charts"), byId("hour-empty"));
  const requests = mountRequests();
  const handlers = {
    status: (status) => {
      overview(status);
      problems(status);
      engines(status);
      gpus(status);
      hour.updateStatus(status);
      requests.updateStatus(status);
      requestList.updateStatus(status);
      suggestModels(status.models);
    },
    history: hour.updateHistory,
    requests: requests.update,
    batches: mountBatches(),
  };
  return (name, data) => handlers[name](data);
}

function suggestModels(models) {
  const list = byId("model-names");
  const names = models.map(({ name }) => name);
  if (
    list.childElementCount === names.length &&
    [...list.children].every((option, index) => option.value === names[index])
  )
    return;
  list.replaceChildren(...names.map((name) => element("option", { value: name })));
}

function connectionHandler() {
  let shown = "connecting";
  return (state) => {
    if (state === shown) return;
    // Stale values stay on the page, but look like it.
    document.body.classList.toggle("stale", state !== "live");
    byId("connection").dataset.state = state;
    setText(byId("connection-text"), STATES[state]);
    if (state === "reconnecting" && shown === "live") announce("The connection is lost. Reconnecting.");
    shown = state;
  };
}

function followAddress(listing, playground, requestList, tenants, changes) {
  let first = true;
  const follow = () => {
    const route = showRoute(location.hash);
    listing.leave();
    requestList.leave();
    if (route.view === "cache" && route.tab === "entries") {
      listing.show(route.params);
      byId("entry-back").setAttribute("href", listingHash(Object.fromEntries(route.params)));
    }
    if (route.view === "cache" && route.tab === "entry") showEntry(route.detail ?? "");
    if (route.view === "playground") playground.show();
    if (route.view === "requests") requestList.show(route.params);
    if (route.view === "tenants") tenants.show(route.params);
    if (route.view === "changes") changes.show(route.params);
    if (route.view === "request") showRequest(route.detail ?? "");
    if (!first) scrollTo(0, 0);
    first = false;
  };
  addEventListener("hashchange", follow);
  follow();
}

function endSession(events) {
  events.stop();
  notify("Your session has ended.", { bad: true, link: { href: "/dashboard", text: "Sign in again" } });
}

start();
