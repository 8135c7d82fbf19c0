// The job's workers: where they run, with which GPUs, and how those of the last attempt ended.
import { call, jobPath } from "../api.js";
import { bytes, duration, gpuHours, percent, plain } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { useLoad } from "../load.js";
import { html } from "../ui.js";

const EVERY_MS = 15_000;

export function Workers({ job }) {
  const last = job.status.attempts?.at(-1);
  const rows = job.status.placement?.length > 0 ? job.status.placement : (last?.workers ?? []);
  const attempt = job.status.placement?.length > 0 ? job.status.attempt : last?.number;
  const path = `${jobPath(projectOf(job), nameOf(job))}/usage?attempt=${attempt}`;
  const wanted = attempt && job.spec.gpusPerWorker > 0 ? path : null;
  const { data } = useLoad(wanted, (signal) => call("GET", path, { signal }), hasEnded(job) ? 0 : EVERY_MS);
  if (rows.length === 0) return null;
  const gpusOf = (worker) => (data?.gpus ?? []).filter((gpu) => gpu.worker === worker && gpu.attempt === attempt);
  return html`<section class="panel" aria-labelledby="workers"><h2 id="workers">Workers <span class="faint">of attempt ${attempt}</span></h2>
    <table class="compact cards"><thead><tr><th>Worker</th><th>Node</th><th>GPUs</th><th>End</th></tr></thead>
    <tbody>${rows.map(({ worker, node, exitCode, category }) => html`<tr>
      <td data-label="Worker">${worker}</td><td data-label="Node">${plain(node)}</td>
      <td data-label="GPUs">${gpusOf(worker).length > 0 ? gpusOf(worker).map((gpu) => html`<${Gpu} gpu=${gpu} />`) : html`<span class="faint">${job.spec.gpusPerWorker ? `${job.spec.gpusPerWorker}, no receipt yet` : "none"}</span>`}</td>
      <td data-label="End">${exitCode !== undefined ? `exit code ${exitCode}${category ? `, ${category}` : ""}` : (category ?? html`<span class="faint">–</span>`)}</td></tr>`)}</tbody></table>
  </section>`;
}

function Gpu({ gpu }) {
  const { usage } = gpu;
  const observed = usage.gpuSeconds - usage.unobservedSeconds;
  const active = usage.smActiveSeconds ?? usage.busySeconds;
  const parts = [
    gpuHours(usage.gpuSeconds),
    active !== undefined && observed > 0 && `${usage.smActiveSeconds !== undefined ? "SM active" : "busy"} ${percent(active / observed)}`,
    usage.memoryPeakBytes !== undefined && `peak ${bytes(usage.memoryPeakBytes)}`,
    usage.idleSeconds && Object.values(usage.idleSeconds).some((s) => s >= 1) && `idle ${duration(Object.values(usage.idleSeconds).reduce((a, b) => a + b, 0))}`,
  ].filter(Boolean);
  return html`<div title=${gpu.uuid}>${plain(gpu.model)} <span class="faint">${plain(gpu.uuid.slice(0, 12))} · ${parts.join(" · ")}</span></div>`;
}
