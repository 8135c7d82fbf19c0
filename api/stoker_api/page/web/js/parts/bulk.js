// Several jobs at once: cancel or suspend, after a look at what would become of each.
import { call, jobPath } from "../api.js";
import { gpus, plural } from "../format.js";
import { gpusOf, hasEnded, keyOf, nameOf, PLACED, projectOf } from "../job_facts.js";
import { may } from "../session.js";
import { html, useState } from "../ui.js";
import { Dialog } from "./dialog.js";
import { SameAs, inProject } from "./same_as.js";
import { State } from "./state.js";

export function Bulk({ jobs, onDone }) {
  const [asked, setAsked] = useState(null);
  const allowed = jobs.every((job) => may("update trainingjobs", projectOf(job)));
  const compared = jobs.length > 1 && jobs.length <= 10;
  return html`<div class="bulk" role="region" aria-label="Chosen jobs">
    <strong>${plural(jobs.length, "job")} chosen</strong>
    ${allowed && html`<button type="button" onClick=${() => setAsked("suspend")}>Suspend …</button>
      <button type="button" onClick=${() => setAsked("cancel")}>Cancel …</button>`}
    ${!allowed && html`<span class="faint">Your token may read them, not change them.</span>`}
    ${compared && html`<a class="button" href=${`/compare?jobs=${jobs.map(keyOf).join(",")}`}>Compare</a>`}
    <button type="button" class="quiet" onClick=${onDone}>Choose none</button>
    ${asked && html`<${Preview} action=${asked} jobs=${jobs} onClose=${() => setAsked(null)} onDone=${onDone} />`}
  </div>`;
}

/** What would become of the job; null: nothing. */
function consequence(action, job) {
  if (hasEnded(job)) return null;
  if (action === "suspend" && job.spec.suspend) return null;
  if (PLACED.has(job.status.phase)) return action === "suspend" ? "saves, stops, and waits to be resumed" : "saves, stops, and does not go on";
  return action === "suspend" ? "leaves its queue until it is resumed" : "leaves its queue for good";
}

/** [project, names of its jobs], since a command is for one project. */
function byProject(jobs) {
  return [...new Set(jobs.map(projectOf))].map((project) => [project, jobs.filter((job) => projectOf(job) === project).map(nameOf)]);
}

function Preview({ action, jobs, onClose, onDone }) {
  const [results, setResults] = useState({});
  const [busy, setBusy] = useState(false);
  const title = action === "suspend" ? "Suspend jobs" : "Cancel jobs";
  const affected = jobs.filter((job) => consequence(action, job));
  const freed = affected.filter((job) => PLACED.has(job.status.phase)).reduce((sum, job) => sum + gpusOf(job), 0);
  const finished = Object.keys(results).length === affected.length && affected.length > 0;

  async function act() {
    setBusy(true);
    for (const job of affected) {
      const result = await call("POST", `${jobPath(projectOf(job), nameOf(job))}/${action}`).then(() => "done", (error) => error.message);
      setResults((old) => ({ ...old, [keyOf(job)]: result }));
    }
    setBusy(false);
  }

  return html`<${Dialog} title=${title} onClose=${finished ? onDone : onClose}>
    <p>${plural(affected.length, "job")} of ${jobs.length} will change${freed > 0 && html`; ${gpus(freed)} become free`}.</p>
    <ul class="preview">${jobs.map((job) => html`<li>
      <${State} phase=${job.status.phase} /> <span class="grow"><strong>${keyOf(job)}</strong></span>
      <span class="faint">${results[keyOf(job)] ?? consequence(action, job) ?? "stays as it is"}</span></li>`)}
    </ul>
    <div class="dialog-foot">
      ${finished
        ? html`<button type="button" class="main" onClick=${onDone}>Close</button>`
        : html`<button type="button" onClick=${onClose}>Back</button>
            <button type="button" class=${action === "cancel" ? "danger" : "main"} disabled=${busy || affected.length === 0} onClick=${act}>
              ${busy ? "Working …" : `${action === "suspend" ? "Suspend" : "Cancel"} ${plural(affected.length, "job")}`}</button>`}
    </div>
    <${SameAs} command=${byProject(affected).map(([project, names]) => `stoker ${action} ${inProject(project)}${names.join(" ")}`).join("; ")}
      path=${affected.length > 0 && `${jobPath(projectOf(affected[0]), nameOf(affected[0]))}/${action}`} method="POST" />
  </${Dialog}>`;
}
