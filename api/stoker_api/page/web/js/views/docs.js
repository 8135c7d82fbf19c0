// The api: every operation with its parameters, its fields, an example that can be sent, and its errors, from the api's own document.
import { call, token } from "../api.js";
import { useLoad } from "../load.js";
import { waiting } from "../parts/notices.js";
import { place, refine } from "../router.js";
import { me, signIn, trouble } from "../session.js";
import { html, useEffect, useState } from "../ui.js";
import { Operation } from "./docs_operation.js";

export function Docs() {
  const load = useLoad("document", (signal) => call("GET", "/openapi.json", { signal }));
  const [wanted, setWanted] = useState("");
  const chosen = place.value.query.get("op");
  useEffect(() => {
    if (load.data && chosen) document.getElementById(chosen)?.scrollIntoView();
  }, [load.data]);
  const early = waiting(load, "the api's document");
  if (early) return early;
  const tags = byTag(load.data, wanted.trim().toLowerCase());
  return html`
    <div class="view-head"><h1>API</h1>
      <p class="faint">Everything that the command and this page do. <a href="/openapi.json" target="_blank">openapi.json</a></p></div>
    <${TokenBox} />
    <div class="filters"><input class="search" type="search" aria-label="Search operations" placeholder="Search: submit, /queues, PUT …" spellcheck=${false} value=${wanted}
      onInput=${(event) => setWanted(event.target.value)} /></div>
    ${tags.length === 0 && html`<p class="notice" role="status">No operation matches.</p>`}
    ${tags.map(([tag, operations]) => html`<section class="operations" key=${tag} aria-label=${tag}>
      <h2>${tag}</h2>
      ${operations.map((one) => html`<${Operation} key=${one.operationId} ...${{ one, schemas: load.data.components.schemas, anyErrors: load.data.components.responses.Problem }}
        opened=${one.operationId === chosen} onOpen=${() => refine({ op: one.operationId }, { replace: true })} />`)}
    </section>`)}`;
}

/** [[tag, operations]] in the order of the document, those that `text` is part of. */
function byTag({ paths }, text) {
  const found = new Map();
  for (const [path, item] of Object.entries(paths))
    for (const [method, operation] of Object.entries(item)) {
      const one = { ...operation, path, method: method.toUpperCase() };
      if (!`${one.method} ${path} ${one.operationId} ${one.description}`.toLowerCase().includes(text)) continue;
      const tag = operation.tags[0];
      found.set(tag, [...(found.get(tag) ?? []), one]);
    }
  const first = ["jobs", "streams", "files", "queues", "nodes", "usage"];
  const rank = (tag) => (first.includes(tag) ? first.indexOf(tag) : first.length);
  return [...found].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
}

function TokenBox() {
  async function submit(event) {
    event.preventDefault();
    await signIn(new FormData(event.target).get("token"));
  }
  if (me.value && token.value) return html`<p class="faint row">Examples are sent with the token of <strong>${me.value.name}</strong>. Sign out to use another.</p>`;
  return html`<form class="row" onSubmit=${submit}>
    <label><span>Token, to send the examples with</span><input name="token" type="password" autocomplete="off" spellcheck=${false} required /></label>
    <button type="submit">Use it</button>
    ${trouble.value && html`<p class="problem" role="alert">${trouble.value}</p>`}
  </form>`;
}
