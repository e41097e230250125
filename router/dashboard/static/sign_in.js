/** Signs in with a link: sends the token that stands after `#` in the address. */

const LOST = "The router does not answer. Load the page of a new link once it does.";

async function signIn(token) {
  try {
    const response = await fetch("/dashboard/sign-in", { method: "POST", body: new URLSearchParams({ token }) });
    return response.ok ? null : (await response.json()).error.message;
  } catch {
    return LOST;
  }
}

const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
// At once, so that neither a bookmark nor a reload sends it again. The database of the history may keep it.
history.replaceState(null, "", location.pathname);
const problem = await signIn(token);
if (problem === null) location.replace("/dashboard");
else document.getElementById("sign-in-state").textContent = problem;
