// Up to ten jobs beside each other: their curves over each other, and where their specs differ.
import { call, jobPath } from "../api.js";
import { duration, energy, gpuHours, plain } from "../format.js";
import { keyOf, progressOf, ranS } from "../job_facts.js";
import { useLoad } from "../load.js";
import { Empty, Failure, waiting } from "../parts/notices.js";
import { Plot } from "../parts/plot.js";
import { SameAs, quoted } from "../parts/same_as.js";
import { State } from "../parts/state.js";
import { jobAddress, place, refine } from "../router.js";
import { html } from "../ui.js";
import { Switch } from "../parts/switch.js";
import { differing } from "../yaml.js";

const MOST = 10;
const POINTS = 400;
const EVERY_MS = 5000;
const AXES = [["", "steps"], ["time", "time since the start"], ["joules", "energy"]];

export function Compare() {
  const { query } = place.value;
  const keys = [...new Set((query.get("jobs") ?? "").split(",").filter((key) => /^[^/]+\/[^/]+$/.test(key)))].slice(0, MOST);
  const load = useLoad(keys.length > 0 ? keys.join(",") : null, (signal) => Promise.all(keys.map((key) => everything(key, signal))), EVERY_MS);
  const set = (next) => refine({ jobs: next.join(",") });
  const add = (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("job").trim();
    if (!given) return;
    set([...keys, given.includes("/") ? given : `default/${given}`]);
    event.target.reset();
  };
  const found = load.data?.filter(({ job }) => job) ?? [];
  return html`<div class="view-head"><h1>Compare</h1></div>
    <form class="row" onSubmit=${add}><label><span>Add a job (at most ${MOST})</span><input name="job" placeholder="name or project/name" spellcheck=${false} autocomplete="off" /></label>
      <button type="submit" disabled=${keys.length >= MOST}>Add</button></form>
    ${keys.length === 0 ? html`<${Empty} title="No jobs are chosen.">Choose some in <a href="/">Jobs</a> and press Compare, or add them here.</${Empty}>`
      : waiting(load, "the jobs") ?? html`${load.data.filter(({ error }) => error).map(({ key, error }) => html`<div class="row"><${Failure} error=${{ title: key, message: error.message }} again=${() => set(keys.filter((one) => one !== key))} /></div>`)}
        ${found.length > 0 && html`<${Heads} found=${found} leave=${(key) => set(keys.filter((one) => one !== key))} /><${Curves} found=${found} /><${Differences} found=${found} />`}`}
    <${SameAs} command=${keys[0] ? keys.map((key) => `stoker metrics -p ${key.split("/").map(quoted).join(" ")} -o csv`).join("; ") : "stoker metrics JOB -o csv"} path=${keys[0] && `${jobPath(...keys[0].split("/"))}/metrics`} />`;
}

async function everything(key, signal) {
  const path = jobPath(...key.split("/"));
  try {
    const [job, metrics] = await Promise.all([call("GET", path, { signal }), call("GET", `${path}/metrics?points=${POINTS}`, { signal })]);
    return { key, job, curves: metrics.curves };
  } catch (error) {
    if (error.status) return { key, error };
    throw error;
  }
}

function Heads({ found, leave }) {
  return html`<table class="compact cards"><thead><tr><th>Job</th><th>State</th><th class="right">Ran</th><th>Progress</th><th class="right">GPU time</th><th class="right">Energy</th><th><span class="unseen">Leave out</span></th></tr></thead>
    <tbody>${found.map(({ key, job }, n) => html`<tr key=${key}><td class="name"><span class=${`swatch series-${n % 6}`} aria-hidden="true"></span><a href=${jobAddress(...key.split("/"))}>${key}</a></td>
      <td data-label="State"><${State} phase=${job.status.phase} /></td><td data-label="Ran" class="right">${duration(ranS(job, Date.now()))}</td>
      <td data-label="Progress">${progressOf(job) ? `step ${progressOf(job).step}${progressOf(job).text ? ` · ${progressOf(job).text}` : ""}` : "–"}</td>
      <td data-label="GPU time" class="right">${job.status.usage?.gpuSeconds ? gpuHours(job.status.usage.gpuSeconds) : "–"}</td><td data-label="Energy" class="right">${energy(job.status.usage?.energyJoules)}</td>
      <td class="right"><button type="button" class="quiet small" aria-label=${`Leave out ${key}`} onClick=${() => leave(key)}>Leave out</button></td></tr>`)}</tbody></table>`;
}

/** Watts of the job's GPUs on average; null where no energy is known. */
function powerOf({ status }) {
  const ran = ranS({ status }, Date.now());
  return status.usage?.energyJoules > 0 && ran > 0 ? status.usage.energyJoules / ran : null;
}

function Curves({ found }) {
  const measured = found.every(({ job }) => powerOf(job) !== null);
  const asked = place.value.query.get("by") ?? "";
  const by = asked === "joules" && !measured ? "" : asked;
  const metrics = [...new Set(found.flatMap(({ curves }) => curves.map(({ metric }) => metric)))].filter((metric) => !/^(gpu|stoker)\//.test(metric)).sort();
  if (metrics.length === 0) return html`<p class="notice">None of them has reported metrics.</p>`;
  return html`<div class="row controls"><${Switch} label="Over" name="by" options=${AXES.filter(([key]) => key !== "joules" || measured)} />
      ${by === "joules" && html`<span class="faint">In joules, each job at its average power.</span>`}${by === "time" && html`<span class="faint">In seconds.</span>`}</div>
    <div class="plots">${metrics.map((metric) => html`<${Plot} key=${metric} title=${plain(metric)} together="compare"
      lines=${found.map(({ key, job, curves }) => ({ label: key, ...joined(curves.filter((curve) => curve.metric === metric), by, job) }))} />`)}</div>`;
}

/** The attempts of one metric as one line. Time and energy run on from one attempt to the next, without the pauses. */
function joined(curves, by, job) {
  const line = { x: [], y: [] };
  let before = 0;
  for (const { steps, times, values } of curves) {
    const at = by === "" ? steps : times.map((time) => (before + time - times[0]) * (by === "joules" ? powerOf(job) : 1));
    line.x.push(...at);
    line.y.push(...values);
    before += times.length > 0 ? times.at(-1) - times[0] : 0;
  }
  return line;
}

function Differences({ found }) {
  if (found.length < 2) return null;
  const rows = differing(found.map(({ job }) => job.spec));
  return html`<section class="panel"><h2>Where their specs differ</h2>
    ${rows.length === 0 ? html`<p class="faint">Nowhere: they are the same.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Where their specs differ"><table class="compact"><thead><tr><th>Field</th>${found.map(({ job }) => html`<th>${keyOf(job)}</th>`)}</tr></thead>
      <tbody>${rows.map(([field, values]) => html`<tr><td class="mono">${plain(field)}</td>${values.map((value) => html`<td class="mono">${value === undefined ? html`<span class="faint">absent</span>` : plain(value)}</td>`)}</tr>`)}</tbody></table></div>`}
  </section>`;
}
