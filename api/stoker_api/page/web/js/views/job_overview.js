// A job at a glance: its time by phase, why it is where it is, and its workers.
import { jobPath } from "../api.js";
import { nameOf, projectOf } from "../job_facts.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { html } from "../ui.js";
import { Timeline } from "./job_timeline.js";
import { Why } from "./job_why.js";
import { Workers } from "./job_workers.js";

export function Overview({ job, now, reload }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  return html`
    <${Timeline} job=${job} now=${now} />
    <${Why} job=${job} reload=${reload} />
    <${Workers} job=${job} />
    <${SameAs} command=${`stoker why ${inProject(project)}${name}`} path=${`${jobPath(project, name)}/explain`} />`;
}
