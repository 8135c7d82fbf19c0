// A job once more, with changes: the fields that are changed most by themselves, anything else as a JSON merge patch.
import { call, jobPath } from "../api.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { Dialog, Outcome, useAct } from "../parts/dialog.js";
import { SameAs, inProject, quoted } from "../parts/same_as.js";
import { html, useState } from "../ui.js";

const FIELDS = [["queue", "Queue", "text"], ["priority", "Priority", "number"], ["workers", "Workers", "number"], ["gpusPerWorker", "GPUs per worker", "number"], ["cpu", "CPU cores per worker", "text"], ["memory", "Memory per worker", "text"]];

/** start: a merge patch of the spec that is filled in; cancels: offer to cancel the other job. */
export function Clone({ job, onClose, onDone, start = {}, title, cancels = false }) {
  const [patch, setPatch] = useState(start);
  const [more, setMore] = useState("");
  const [name, setName] = useState("");
  const [fromCheckpoint, setFromCheckpoint] = useState(false);
  const [cancelOther, setCancelOther] = useState(cancels);
  const project = projectOf(job);
  const other = Object.fromEntries(Object.entries(patch).filter(([field]) => !FIELDS.some(([known]) => known === field)));
  const asked = () => ({ ...(name && { metadata: { name } }), spec: { ...patch, ...parsed(more) }, ...(fromCheckpoint && { fromCheckpoint }) });
  const [state, run] = useAct(async () => {
    const made = await call("POST", `${jobPath(project, nameOf(job))}/clone`, { body: asked() });
    if (cancelOther) await call("POST", `${jobPath(project, nameOf(job))}/cancel`);
    onDone(made);
  });
  const change = (field, type) => (event) => {
    const value = type === "number" ? event.target.valueAsNumber : event.target.value.trim();
    const next = { ...patch, [field]: value };
    if (value === (job.spec[field] ?? "") || value === "" || Number.isNaN(value)) delete next[field];
    setPatch(next);
  };
  let body = {};
  try { body = asked(); } catch { /* what is typed is no JSON yet */ }
  const sets = Object.entries(body.spec ?? {}).map(([field, value]) => ` --set ${quoted(`spec.${field}=${typeof value === "object" ? JSON.stringify(value) : value}`)}`).join("");
  return html`<${Dialog} title=${title ?? `Clone ${nameOf(job)}`} onClose=${onClose}>
    <form class="stack" onSubmit=${run}>
      <p>A new job with the same code; what is not changed stays.</p>
      <label><span>Name</span><input value=${name} placeholder=${`${nameOf(job)}-…`} onInput=${(event) => setName(event.target.value.trim())} spellcheck=${false} /></label>
      <div class="fields">${FIELDS.map(([field, label, type]) => html`<label><span>${label}</span>
        <input name=${field} type=${type} class=${field in patch ? "changed" : ""} defaultValue=${patch[field] ?? job.spec[field] ?? ""} onInput=${change(field, type)} spellcheck=${false} /></label>`)}</div>
      ${Object.keys(other).length > 0 && html`<p>It also changes <code>${JSON.stringify(other)}</code>.</p>`}
      <label><span>Further changes of its spec, as JSON</span>
        <textarea rows="3" value=${more} placeholder='{"trainer": {"config": {"epochs": 20}}}' spellcheck=${false} onInput=${(event) => setMore(event.target.value)}></textarea></label>
      ${hasEnded(job) && html`<label class="check"><input type="checkbox" checked=${fromCheckpoint} onChange=${(event) => setFromCheckpoint(event.target.checked)} /> Go on from its newest checkpoint</label>`}
      ${cancels && html`<label class="check"><input type="checkbox" checked=${cancelOther} onChange=${(event) => setCancelOther(event.target.checked)} /> Cancel ${nameOf(job)} once the clone is submitted</label>`}
      <${Outcome} state=${state} />
      <div class="dialog-foot"><button type="button" onClick=${onClose}>Back</button><button type="submit" class="main" disabled=${state.busy}>Submit</button></div>
    </form>
    <${SameAs} command=${`stoker clone ${inProject(project)}${nameOf(job)}${name ? ` --name ${quoted(name)}` : ""}${fromCheckpoint ? " --from-checkpoint" : ""}${sets}`}
      path=${`${jobPath(project, nameOf(job))}/clone`} method="POST" body=${body} />
  </${Dialog}>`;
}

function parsed(text) {
  if (!text.trim()) return {};
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new Error(`The further changes are no JSON: ${error.message}`);
  }
  if (data === null || typeof data !== "object" || Array.isArray(data)) throw new Error("The further changes must be a JSON object.");
  return data;
}
