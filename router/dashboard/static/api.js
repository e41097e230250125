/** Requests to the admin API, with the session's cookie. */

/** A request that failed. `message` is a sentence for people; `status` is 0 if there was no response. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const SESSION_ENDED = "Your session has ended. Sign in again to continue.";

/** Listeners for `ended`: the session is over, and no request can succeed before a new one. */
export const session = new EventTarget();

/** The JSON of a response. Raises RequestError; an aborted request raises AbortError. */
export async function requestJson(method, path, { body, signal } = {}) {
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-roundhouse-csrf"] = "1";
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await send(path, { method, headers, body, signal, credentials: "same-origin", cache: "no-store" });
  if (response.ok) return await readJson(response);
  if (response.status === 401) session.dispatchEvent(new Event("ended"));
  throw new RequestError(await errorMessage(response), response.status);
}

/** `fetch`, with an error in words if no response comes. */
export async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The router cannot be reached. It may be restarting; try again.", 0);
  }
}

async function readJson(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The response broke off. Try again.", response.status);
  }
}

/** What an error response says, in words. */
export async function errorMessage(response) {
  if (response.status === 401 && response.url.includes("/admin/")) return SESSION_ENDED;
  try {
    const { error } = await response.json();
    if (typeof error?.message === "string") return error.message;
  } catch {
    // Not from the router: a proxy's page, perhaps.
  }
  return `The router responded with status ${response.status}.`;
}

export async function signOut() {
  await send("/dashboard/logout", { method: "POST", headers: { "x-roundhouse-csrf": "1" }, redirect: "manual" });
  location.assign("/dashboard");
}
