// One operation of the api: what it takes, an example that can be changed and sent, what it answers.
import { token } from "../api.js";
import { plain } from "../format.js";
import { Schema, Prose, typeOf } from "../parts/schema.js";
import { Copy, quoted } from "../parts/same_as.js";
import { html, useState } from "../ui.js";

const MOST_SHOWN = 200_000;
const indented = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

export function Operation({ one, schemas, anyErrors, opened, onOpen }) {
  const [open, setOpen] = useState(opened);
  const toggle = (event) => {
    setOpen(event.target.open);
    if (event.target.open && !opened) onOpen();
  };
  return html`<details class="operation" id=${one.operationId} open=${open} onToggle=${toggle}>
    <summary><span class=${`method method-${one.method.toLowerCase()}`}>${one.method}</span> <code>${one.path}</code> <span class="faint">${one.summary}</span></summary>
    ${open && html`<${Body} ...${{ one, schemas, anyErrors }} />`}
  </details>`;
}

function Body({ one, schemas, anyErrors }) {
  const [values, setValues] = useState(Object.fromEntries((one.parameters ?? []).map((parameter) => [parameter.name, parameter.example ?? ""])));
  const [type, content] = Object.entries(one.requestBody?.content ?? {})[0] ?? [];
  const [body, setBody] = useState(content ? indented(content.example ?? "") : undefined);
  const answers = Object.entries(one.responses);
  const good = answers.filter(([status]) => status.startsWith("2"));
  const errors = answers.filter(([status]) => !status.startsWith("2") && status !== "default");
  return html`<div class="operation-body">
    <p><${Prose} text=${one.description} /> <span class="faint"><code>${one.operationId}</code>${one.security.length === 0 && " · needs no token"}</span></p>
    ${one.parameters?.length > 0 && html`<h3>Parameters</h3><table class="compact cards parameters">
      <thead><tr><th>Name</th><th>Value</th><th>What</th></tr></thead>
      <tbody>${one.parameters.map((parameter) => html`<tr key=${parameter.name}>
        <td class="name"><code>${parameter.name}</code> <span class="faint">${parameter.in}${parameter.required ? ", required" : ""}</span></td>
        <td class="wide"><input aria-label=${parameter.name} value=${values[parameter.name]} spellcheck=${false} autocomplete="off"
          onInput=${(event) => setValues({ ...values, [parameter.name]: event.target.value })} /></td>
        <td class="wide"><${Prose} text=${parameter.description} /> <span class="faint">${typeOf(parameter.schema, schemas)}</span></td>
      </tr>`)}</tbody></table>`}
    ${content && html`<h3>Body <span class="faint">${type}</span></h3>
      <textarea aria-label=${`Body of ${one.operationId}`} rows=${Math.min(24, body.split("\n").length + 1)} spellcheck=${false} value=${body} onInput=${(event) => setBody(event.target.value)} />
      <details class="more"><summary>Its fields</summary><${Schema} schema=${content.schema} schemas=${schemas} /></details>`}
    <${Trial} ...${{ one, values, type, body }} />
    ${good.map(([status, answer]) => html`<${Answer} key=${status} ...${{ status, answer, schemas }} />`)}
    <h3>Errors</h3>
    <ul class="errors">
      ${errors.map(([status, { description }]) => html`<li key=${status}><strong>${status}</strong> ${codes(description)}</li>`)}
      <li class="faint">${codes(anyErrors.description)}</li>
    </ul>
  </div>`;
}

const codes = (text) => text.split("; ").map((one, n) => html`${n > 0 && " · "}<${Prose} text=${one.replace(/(\w+): /, "`$1` ")} />`);

function Answer({ status, answer, schemas }) {
  const [type, content] = Object.entries(answer.content ?? {})[0] ?? [];
  return html`<h3>Answer ${status} <span class="faint">${answer.description}${type ? `, ${Object.keys(answer.content).join(" or ")}` : ""}</span></h3>
    ${content?.example !== undefined && html`<pre class="code" tabindex="0" aria-label=${`Example of the answer ${status}`}>${indented(content.example)}</pre>`}
    ${content?.schema && html`<details class="more"><summary>Its fields</summary><${Schema} schema=${content.schema} schemas=${schemas} /></details>`}`;
}

/** Where the request goes, and its headers but the token's. */
function asked({ one, values, type }) {
  let path = one.path;
  const query = new URLSearchParams();
  const headers = type ? { "Content-Type": type } : {};
  for (const { name, in: where } of one.parameters ?? []) {
    const value = String(values[name]);
    if (where === "path") path = path.replace(`{${name}}`, name === "path" ? value.split("/").map(encodeURIComponent).join("/") : encodeURIComponent(value));
    else if (value !== "" && where === "query") query.set(name, value);
    else if (value !== "" && where === "header") headers[name] = value;
  }
  return { path: path + (query.size ? `?${query}` : ""), headers };
}

function Trial({ one, values, type, body }) {
  const [answer, setAnswer] = useState(null);
  const [stop, setStop] = useState(null);
  const { path, headers } = asked({ one, values, type });
  const secret = one.security.length > 0;

  async function send() {
    const abort = new AbortController();
    setStop(abort);
    try {
      const given = secret && token.value ? { Authorization: `Bearer ${token.value}` } : {};
      const found = await fetch(path, { method: one.method, headers: { ...headers, ...given }, body, signal: abort.signal });
      const head = `${found.status} ${found.statusText}\n`;
      const [reader, decoder] = [found.body?.getReader(), new TextDecoder()];
      let text = "";
      for (let part = {}; reader && !part.done && text.length < MOST_SHOWN; ) {
        part = await reader.read();
        text += decoder.decode(part.value, { stream: !part.done });
        setAnswer(head + plain(text));
      }
      abort.abort();
      setAnswer(head + plain(pretty(text, found.headers.get("content-type"))));
    } catch (error) {
      if (error.name !== "AbortError") setAnswer(`The request did not get there: ${error.message}`);
    }
    setStop(null);
  }

  const curl = ["curl", one.method === "GET" ? "" : `-X ${one.method}`, secret && '-H "Authorization: Bearer $STOKER_TOKEN"', ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    body !== undefined && `--data-binary ${quoted(compact(body))}`, quoted(location.origin + path)].filter(Boolean).join(" ");
  return html`<div class="command"><code>${curl}</code><${Copy} text=${curl} what="Copy the curl line" /></div>
    <div class="row trial">
      <button type="button" class="main" disabled=${stop !== null || (secret && !token.value)} onClick=${send}>Send ${one.method}</button>
      ${stop && html`<button type="button" onClick=${() => stop.abort()}>Stop</button>`}
      ${secret && !token.value && html`<span class="faint">Needs a token: enter one above.</span>`}
    </div>
    ${answer !== null && html`<pre class="code answer" tabindex="0" role="status" aria-label="What was answered">${answer}</pre>`}`;
}

function compact(text) {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}

function pretty(text, type) {
  try {
    return type?.includes("json") ? indented(JSON.parse(text)) : text;
  } catch {
    return text;
  }
}
