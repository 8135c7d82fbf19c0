// "The same as": the command and the call that do what the view does, ready to be copied. What comes from the address or
// from users is quoted: anyone can send a link, and the line ends in a shell.
import { plain } from "../format.js";
import { html, useState } from "../ui.js";

export function Copy({ text, what = "Copy" }) {
  const [done, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard?.writeText(text).catch(() => {});
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button type="button" class="quiet small" onClick=${copy} aria-label=${`${what}: ${text}`}>${done ? "Copied" : "Copy"}</button>`;
}

export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** command: of `stoker`; path: of the api; method, body: where it is no GET. */
export function SameAs({ command, path, method = "GET", body }) {
  const verb = method === "GET" ? "" : ` -X ${method}`;
  const data = body === undefined ? "" : ` -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
  const curl = path && `curl${verb} -H "Authorization: Bearer $STOKER_TOKEN"${data} ${quoted(location.origin + path)}`;
  const lines = [command, curl].filter(Boolean).map(plain);
  return html`<details class="same-as">
    <summary>The same as</summary>
    ${lines.map((line) => html`<div class="command"><code>${line}</code><${Copy} text=${line} /></div>`)}
  </details>`;
}

/** The command's options for a project. */
export const inProject = (project) => (project && project !== "default" ? `-p ${quoted(project)} ` : "");
