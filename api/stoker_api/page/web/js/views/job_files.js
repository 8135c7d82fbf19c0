// What the job has left behind. A file comes by a ticket that is good once: a link carries no token.
import { call, jobPath } from "../api.js";
import { bytes, plain } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { useLoad } from "../load.js";
import { Empty, waiting } from "../parts/notices.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { Time } from "../parts/time.js";
import { html, useState } from "../ui.js";

const EVERY_MS = 10_000;

export function Files({ job }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  const path = `${jobPath(project, name)}/files`;
  const load = useLoad(path, (signal) => call("GET", path, { signal }), hasEnded(job) ? 0 : EVERY_MS);
  const [problem, setProblem] = useState(null);
  const same = html`<${SameAs} command=${`stoker cp ${inProject(project)}${name}: .`} path=${path} />`;

  async function fetchFile(file) {
    setProblem(null);
    try {
      const { ticket } = await call("POST", `${jobPath(project, name)}/file-tickets`, { body: { path: file } });
      const link = document.createElement("a");
      link.href = `/v1/file-tickets/${encodeURIComponent(ticket)}`;
      link.download = "";
      link.click();
    } catch (error) {
      setProblem(error);
    }
  }

  const early = waiting(load, "files");
  if (early) return html`${early}${same}`;
  const files = load.data.items;
  if (files.length === 0) return html`<${Empty} title="No files."><p>What the job writes to <code>$STOKER_OUTPUT_DIR</code> is listed here.</p></${Empty}>${same}`;
  return html`
    ${job.status.output && html`<p class="faint">In <code>${plain(job.status.output)}</code></p>`}
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
    <table class="compact cards"><thead><tr><th>File</th><th class="right">Size</th><th>Changed</th><th><span class="unseen">Download</span></th></tr></thead>
    <tbody>${files.map((file) => html`<tr key=${file.path}><td class="name mono">${plain(file.path)}</td>
      <td data-label="Size" class="right">${bytes(file.size)}</td><td data-label="Changed"><${Time} at=${file.modifiedAt} /></td>
      <td class="right">${file.kind === "file" ? html`<button type="button" class="small" aria-label=${`Download ${plain(file.path)}`} onClick=${() => fetchFile(file.path)}>Download</button>` : html`<span class="faint">a link</span>`}</td></tr>`)}</tbody></table>
    ${load.data.truncated && html`<p class="faint">There are more; <code>stoker files ${name}</code> lists them.</p>`}
    ${same}`;
}
