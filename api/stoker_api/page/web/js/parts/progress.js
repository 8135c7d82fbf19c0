// How far a job is: a bar where the end is known, else the step.
import { percent, whole } from "../format.js";
import { progressOf } from "../job_facts.js";
import { html } from "../ui.js";

export function Progress({ job, long = false }) {
  const found = progressOf(job);
  if (!found) return html`<span class="faint">–</span>`;
  const steps = found.total ? `${whole(found.step)} of ${whole(found.total)} steps` : `step ${whole(found.step)}`;
  const bar = found.share !== null && html`<progress max="1" value=${found.share} aria-label=${`Progress of ${job.metadata.name}`}></progress>`;
  const text = long ? [steps, found.text].filter(Boolean).join(" · ") : found.share === null ? steps : percent(found.share);
  return html`<span class="progress" title=${[steps, found.text].filter(Boolean).join(" · ")}>${bar}<span>${text}</span></span>`;
}
