// Who is signed in, and what the token may do. The token stays in this tab (sessionStorage): no cookie, nothing that the
// browser sends by itself.
import { Problem, call, refused, token } from "./api.js";
import { signal } from "./ui.js";

/** The answer of whoami; null before it is here. */
export const me = signal(null);
/** What went wrong while signing in; "" if nothing did. */
export const trouble = signal("");
const rights = new Map();

export async function start() {
  const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
  if (ticket) {
    history.replaceState(null, "", location.pathname + location.search); // out of the history before anything else
    try {
      const { token: given } = await call("POST", "/v1/sign-in-tickets/exchange", { body: { ticket } });
      keep(given);
    } catch (error) {
      trouble.value = error.message;
    }
  }
  if (token.value) await arrive();
}

/** Whether the token is good; `trouble` says why not. */
export async function signIn(given) {
  trouble.value = "";
  keep(given.trim());
  return arrive();
}

export function signOut() {
  keep("");
  me.value = null;
  rights.clear();
}

async function arrive() {
  try {
    me.value = await call("GET", "/v1/whoami");
    return true;
  } catch (error) {
    if (error instanceof Problem && error.status === 401) signOut();
    trouble.value = error.message;
    return false;
  }
}

function keep(given) {
  token.value = given;
  refused.value = "";
  if (given) sessionStorage.setItem("stoker.token", given);
  else sessionStorage.removeItem("stoker.token");
}

/** The projects that the token sees; null: all of them. */
export function projects() {
  const seen = me.value?.projects ?? [];
  return seen.includes("*") ? null : seen;
}

/** Whether the token may do `right` in the project, as far as is known: false until the answer is here. */
export function may(right, project = "") {
  if (!project) return me.value?.may.includes(right) ?? false;
  if (!rights.has(project)) {
    const known = signal([]);
    rights.set(project, known);
    const path = `/v1/whoami?project=${encodeURIComponent(project)}`;
    call("GET", path).then(
      (answer) => (known.value = answer.may),
      () => rights.delete(project), // asked again when it is next of interest
    );
  }
  return rights.get(project).value.includes(right);
}
