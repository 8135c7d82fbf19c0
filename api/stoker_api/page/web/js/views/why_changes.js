// A change that would start the job, as a button. A field of its spec can't change in a job that exists: that is a clone. A
// limit of a queue is the administrator's; what only the cluster's own tools can do is named, not offered.
import { call, jobPath, part } from "../api.js";
import { nameOf, projectOf } from "../job_facts.js";
import { Dialog, Outcome, useAct } from "../parts/dialog.js";
import { SameAs } from "../parts/same_as.js";
import { go, jobAddress } from "../router.js";
import { may } from "../session.js";
import { html, useState } from "../ui.js";
import { Clone } from "./job_clone.js";

const OF_SPEC = new Set(["gpusPerWorker", "workers", "elastic.min", "topology", "gpu", "cpu", "memory", "queue", "preemptible", "spec"]);
const LIMIT = "queue.limit.";

export function Apply({ reason, job, reload }) {
  const [open, setOpen] = useState(false);
  const { change, value, queue } = reason;
  const project = projectOf(job);
  const close = () => setOpen(false);
  if (reason.code === "Suspended" && may("update trainingjobs", project)) return html`<${Resume} job=${job} reload=${reload} />`;
  if (OF_SPEC.has(change) && may("create trainingjobs", project)) {
    const start = patchFor(change, value);
    return html`<button type="button" onClick=${() => setOpen(true)}>${label(change, value)} …</button>
      ${open && html`<${Clone} job=${job} start=${start} title="Submit with this change" cancels=${may("update trainingjobs", project)} onClose=${close}
        onDone=${(made) => (close(), go(jobAddress(projectOf(made), nameOf(made))))} />`}`;
  }
  if (change?.startsWith(LIMIT) && queue && may("update queues"))
    return html`<button type="button" onClick=${() => setOpen(true)}>Raise the limit …</button>
      ${open && html`<${Limit} ...${{ queue, change, value }} onClose=${close} onDone=${() => (close(), reload())} />`}`;
  return null;
}

function Resume({ job, reload }) {
  const [state, run] = useAct(async () => (await call("POST", `${jobPath(projectOf(job), nameOf(job))}/resume`), reload()));
  return html`<div><button type="button" disabled=${state.busy} onClick=${run}>Resume</button><${Outcome} state=${state} /></div>`;
}

const label = (change, value) => (typeof value === "object" ? "Change and submit" : `Set ${change} to ${value}`);

/** The merge patch of a spec that makes the change. */
function patchFor(change, value) {
  if (change === "spec") return { ...value };
  if (change === "elastic.min") return { elastic: { min: value } };
  if (change === "topology") return { topology: { required: null, ...value } };
  if (change === "gpu") return { gpu: null };
  return { [change]: value };
}

function Limit({ queue, change, value, onClose, onDone }) {
  const resource = change.slice(LIMIT.length);
  const [found, setFound] = useState(null);
  const path = `/v1/queues/${part(queue)}`;
  const [state, run] = useAct(async () => {
    const now = await call("GET", path);
    const limit = { ...now.spec.limit, [resource]: typeof value === "object" ? { ...now.spec.limit[resource], ...numbers(value) } : value };
    setFound(limit);
    await call("PUT", path, { body: { spec: { ...now.spec, limit } }, headers: { "If-Match": `"${now.metadata.uid}.${now.metadata.generation}"` } });
    onDone();
  });
  const shown = typeof value === "object" ? Object.entries(value).map(([type, n]) => `${n} ${type}`).join(", ") : String(value);
  const option = typeof value === "object" ? Object.entries(value).map(([type, n]) => `--limit ${type}=${n}`).join(" ") : `--${resource} ${value}`;
  return html`<${Dialog} title=${`Limit of the queue ${queue}`} onClose=${onClose}>
    <p>Its limit of ${resource} becomes <strong>${shown}</strong>, for all jobs of the queue. Running jobs go on.</p>
    <${Outcome} state=${state} />
    <div class="dialog-foot"><button type="button" onClick=${onClose}>Back</button><button type="button" class="main" disabled=${state.busy} onClick=${run}>Set the limit</button></div>
    <${SameAs} command=${`stoker queue set ${queue} ${option}`} path=${path} method="PUT" body=${{ spec: { limit: found ?? { [resource]: value } } }} />
  </${Dialog}>`;
}

const numbers = (values) => Object.fromEntries(Object.entries(values).map(([name, text]) => [name, Number(text)]));
