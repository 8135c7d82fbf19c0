// What may be done with a job: only what its state and the caller's token allow is offered.
import { call, jobPath } from "../api.js";
import { gpus } from "../format.js";
import { gpusOf, hasEnded, nameOf, PLACED, projectOf } from "../job_facts.js";
import { Dialog, Outcome, useAct } from "../parts/dialog.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { go, jobAddress } from "../router.js";
import { may } from "../session.js";
import { html, useState } from "../ui.js";
import { Clone } from "./job_clone.js";

const CONFIRMED = {
  suspend: ["Suspend", "It saves, stops, and waits until it is resumed."],
  resume: ["Resume", "It goes back into its queue and on from its last checkpoint."],
  cancel: ["Cancel", "It saves where it can, and ends for good. Retry runs it again."],
  retry: ["Retry", "It runs again, from its last checkpoint."],
};

export function Actions({ job, reload }) {
  const [asked, setAsked] = useState(null);
  const project = projectOf(job);
  const ended = hasEnded(job);
  const changes = may("update trainingjobs", project);
  const offered = [
    changes && !ended && !job.spec.suspend && "suspend",
    changes && !ended && job.spec.suspend && "resume",
    changes && !ended && !job.spec.cancel && "cancel",
    changes && ["Failed", "Cancelled"].includes(job.status.phase) && "retry",
  ].filter(Boolean);
  const close = () => setAsked(null);
  const done = () => (close(), reload());
  return html`<div class="actions">
    ${offered.map((action) => html`<button type="button" onClick=${() => setAsked(action)}>${CONFIRMED[action][0]}</button>`)}
    ${changes && !ended && html`<button type="button" onClick=${() => setAsked("priority")}>Priority</button>`}
    ${may("create trainingjobs", project) && html`<button type="button" onClick=${() => setAsked("clone")}>Clone</button>`}
    <a class="button" href=${`/compare?jobs=${project}/${nameOf(job)}`}>Compare</a>
    ${asked in CONFIRMED && html`<${Confirm} action=${asked} job=${job} onClose=${close} onDone=${done} />`}
    ${asked === "priority" && html`<${Priority} job=${job} onClose=${close} onDone=${done} />`}
    ${asked === "clone" && html`<${Clone} job=${job} onClose=${close} onDone=${(made) => (close(), go(jobAddress(projectOf(made), nameOf(made))))} />`}
  </div>`;
}

function Confirm({ action, job, onClose, onDone }) {
  const [title, effect] = CONFIRMED[action];
  const path = `${jobPath(projectOf(job), nameOf(job))}/${action}`;
  const [state, run] = useAct(async () => (await call("POST", path), onDone()));
  const frees = PLACED.has(job.status.phase) && gpusOf(job) > 0 && (action === "cancel" || action === "suspend");
  return html`<${Dialog} title=${`${title} ${nameOf(job)}`} onClose=${onClose}>
    <p>${effect}${frees && html` ${gpus(gpusOf(job))} become free.`}</p>
    <${Outcome} state=${state} />
    <div class="dialog-foot">
      <button type="button" onClick=${onClose}>Back</button>
      <button type="button" class=${action === "cancel" ? "danger" : "main"} disabled=${state.busy} onClick=${run}>${title}</button>
    </div>
    <${SameAs} command=${`stoker ${action} ${inProject(projectOf(job))}${nameOf(job)}`} path=${path} method="POST" />
  </${Dialog}>`;
}

function Priority({ job, onClose, onDone }) {
  const [value, setValue] = useState(job.spec.priority);
  const path = jobPath(projectOf(job), nameOf(job));
  const body = { spec: { priority: value } };
  const [state, run] = useAct(async () => (await call("PATCH", path, { body, type: "application/merge-patch+json" }), onDone()));
  return html`<${Dialog} title=${`Priority of ${nameOf(job)}`} onClose=${onClose}>
    <form onSubmit=${run}>
      <p>Higher goes first within the queue ${job.spec.queue}.</p>
      <label><span>Priority</span><input type="number" required step="1" value=${value} onInput=${(event) => setValue(event.target.valueAsNumber)} /></label>
      <${Outcome} state=${state} />
      <div class="dialog-foot"><button type="button" onClick=${onClose}>Back</button><button type="submit" class="main" disabled=${state.busy}>Set priority</button></div>
    </form>
    <${SameAs} command=${`stoker set ${inProject(projectOf(job))}${nameOf(job)} --priority ${value}`} path=${path} method="PATCH" body=${body} />
  </${Dialog}>`;
}
