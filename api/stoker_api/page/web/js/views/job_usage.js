// What the job has had of GPUs: hours, activity, energy and money, and what to ask for instead.
import { call, jobPath } from "../api.js";
import { bytes, duration, energy, gpuHours, number, percent, plain } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { useLoad } from "../load.js";
import { Empty, waiting } from "../parts/notices.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { html } from "../ui.js";

const EVERY_MS = 15_000;
const CLASSES = { no_process: "no process", no_activity: "no activity", low_activity: "little activity" };

export function Usage({ job }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  const path = `${jobPath(project, name)}/usage`;
  const load = useLoad(path, (signal) => call("GET", path, { signal }), hasEnded(job) ? 0 : EVERY_MS);
  const early = waiting(load, "usage");
  if (early) return early;
  const { usage, efficiency, cost, currency, unpricedHours, hints = [], note, gpus = [] } = load.data;
  if (note && usage.gpuSeconds === 0) return html`<${Empty} title="No GPU time.">${note}</${Empty}><${SameAs} command=${`stoker usage ${inProject(project)}${name}`} path=${path} />`;
  const observed = usage.gpuSeconds - usage.unobservedSeconds;
  const share = (seconds) => (seconds === undefined || observed <= 0 ? null : `${percent(seconds / observed)} of the observed time`);
  const facts = [
    ["GPU time", gpuHours(usage.gpuSeconds), usage.simulated ? "of simulated GPUs" : { final: "complete", incomplete: "receipts are missing", running: "so far" }[usage.state]],
    usage.busySeconds !== undefined && ["Busy", gpuHours(usage.busySeconds), share(usage.busySeconds)],
    usage.smActiveSeconds !== undefined && ["SM active", gpuHours(usage.smActiveSeconds), share(usage.smActiveSeconds)],
    usage.tensorActiveSeconds !== undefined && ["Tensor cores active", gpuHours(usage.tensorActiveSeconds), share(usage.tensorActiveSeconds)],
    efficiency !== undefined && ["Efficiency", percent(efficiency), "SM activity per observed time"],
    usage.energyJoules !== undefined && ["Energy", energy(usage.energyJoules), usage.unobservedEnergyJoules ? `of the GPUs alone; ${energy(usage.unobservedEnergyJoules)} of it unobserved` : "of the GPUs alone"],
    cost !== undefined && ["Cost", `${number(cost)} ${currency ?? ""}`, unpricedHours > 0 ? `and ${number(unpricedHours)} GPU-h without a price` : null],
    usage.memoryPeakBytes !== undefined && ["Most memory", bytes(usage.memoryPeakBytes), usage.memoryTotalBytes ? `of ${bytes(usage.memoryTotalBytes)} of one GPU` : null],
    usage.unobservedSeconds >= 1 && ["Not observed", duration(usage.unobservedSeconds), "nothing is known of it"],
    ...Object.entries(usage.idleSeconds ?? {}).filter(([, s]) => s >= 1).map(([kind, s]) => [`Idle: ${CLASSES[kind] ?? kind}`, duration(s), share(s)]),
    ...Object.entries(usage.throttledSeconds ?? {}).filter(([, s]) => s >= 1).map(([kind, s]) => [`Throttled: ${kind.replaceAll("_", " ")}`, duration(s), share(s)]),
  ].filter(Boolean);
  return html`
    <dl class="tiles">${facts.map(([title, value, more]) => html`<div><dt>${title}</dt><dd>${value}</dd>${more && html`<dd class="faint">${more}</dd>`}</div>`)}</dl>
    ${hints.length > 0 && html`<section class="panel"><h2>What to ask for instead</h2><ul>${hints.map((hint) => html`<li>${plain(hint.text)}</li>`)}</ul></section>`}
    ${gpus.length > 0 && html`<section class="panel"><h2>By GPU</h2><table class="compact cards">
      <thead><tr><th>Attempt</th><th>Worker</th><th>Node</th><th>GPU</th><th class="right">Time</th><th class="right">Busy</th><th class="right">Energy</th></tr></thead>
      <tbody>${gpus.map((gpu) => html`<tr><td data-label="Attempt">${gpu.attempt}</td><td data-label="Worker">${gpu.worker}</td><td data-label="Node">${plain(gpu.node)}</td>
        <td data-label="GPU" title=${gpu.uuid}>${plain(gpu.model)}</td><td data-label="Time" class="right">${gpuHours(gpu.usage.gpuSeconds)}</td>
        <td data-label="Busy" class="right">${gpu.usage.busySeconds === undefined ? "–" : percent(gpu.usage.busySeconds / (gpu.usage.gpuSeconds - gpu.usage.unobservedSeconds))}</td>
        <td data-label="Energy" class="right">${energy(gpu.usage.energyJoules)}</td></tr>`)}</tbody></table></section>`}
    <${SameAs} command=${`stoker usage ${inProject(project)}${name}`} path=${path} />`;
}
