// What stands where content would be: it is coming, there is none, it failed. Each says what to do.
import { connection } from "../api.js";
import { duration } from "../format.js";
import { useNow } from "../load.js";
import { html } from "../ui.js";

export function Loading({ what }) {
  return html`<p class="notice loading" role="status">Loading ${what} …</p>`;
}

export function Empty({ title, children }) {
  return html`<div class="notice empty"><p class="notice-title">${title}</p>${children && html`<div>${children}</div>`}</div>`;
}

export function Failure({ error, again }) {
  return html`<div class="notice failure" role="alert">
    <p class="notice-title">${error.title || "That did not work"}</p>
    <p>${error.message}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
    ${error.traceId && html`<p class="faint">Trace <code>${error.traceId}</code> in the server's log.</p>`}
  </div>`;
}

/** What useLoad gave, while there is nothing to show of it; else null. */
export function waiting({ data, error, reload }, what) {
  if (data !== null) return null;
  return error && connection.value.ok ? html`<${Failure} error=${error} again=${reload} />` : html`<${Loading} what=${what} />`;
}

/** Over everything, while the server does not answer. */
export function LostConnection() {
  const now = useNow();
  const { ok, since } = connection.value;
  if (ok) return null;
  return html`<div class="lost" role="alert">
    <strong>No connection to the server</strong> for ${duration((now - since) / 1000)}. What is shown may be old; the page tries again
    by itself.
  </div>`;
}
