// Calls of the api: JSON in and out, problems as errors, the token in the header. What the network does is in `connection`.
import { signal } from "./ui.js";

/** ok, or lost: since when, and why. */
export const connection = signal({ ok: true });
/** The token of this tab; "" before signing in. */
export const token = signal(sessionStorage.getItem("stoker.token") ?? "");
/** Why the token is no good (any more); "" if it is, or none is here. */
export const refused = signal("");

const PROBE_MS = 1500;

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `The server answered ${status}.`);
    this.status = status;
    this.code = document.code ?? "";
    this.title = document.title ?? "";
    this.traceId = document.traceId ?? "";
  }
}

export class Lost extends Error {}

/** What a path segment may be made of. */
export const part = encodeURIComponent;
export const jobPath = (project, name) => `/v1/projects/${part(project)}/jobs/${part(name)}`;

/** The answer to a request. Throws Problem, Lost, or AbortError. */
export async function request(method, path, { body, headers = {}, signal: stop, type = "application/json" } = {}) {
  const asked = { ...headers };
  if (token.value) asked.Authorization = `Bearer ${token.value}`;
  if (body !== undefined) asked["Content-Type"] = type;
  let answer;
  try {
    answer = await fetch(path, { method, headers: asked, body: body === undefined ? undefined : JSON.stringify(body), signal: stop });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Lost("The server does not answer.");
  }
  found();
  if (answer.ok || answer.status === 304) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401 && token.value) refused.value = problem.message;
  throw problem;
}

/** The answer's JSON; null where there is none. */
export async function call(method, path, options) {
  const answer = await request(method, path, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/** The server does not answer: from now on it is asked whether it does again, whatever else a view asks. */
export function lost() {
  if (!connection.value.ok) return;
  connection.value = { ok: false, since: Date.now() };
  probe();
}

function probe() {
  setTimeout(async () => {
    if (connection.value.ok) return;
    const answer = await fetch("/readyz").catch(() => null);
    if (answer?.ok) found();
    else probe();
  }, PROBE_MS);
}

export function found() {
  if (!connection.value.ok) connection.value = { ok: true };
}
