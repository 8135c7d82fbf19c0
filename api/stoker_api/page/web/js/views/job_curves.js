// Curves of every metric that the job has reported, live; its attempts as bands and its checkpoints as marks.
import { jobPath } from "../api.js";
import { bytes, clock, percent, plain } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { useCurves } from "../curves.js";
import { Empty, Failure, Loading } from "../parts/notices.js";
import { Plot } from "../parts/plot.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { Switch } from "../parts/switch.js";
import { place } from "../router.js";
import { html } from "../ui.js";

const GPU = "gpu/";
const CHECKPOINT = "stoker/checkpoint";
const OF_GPUS = [["smActive", "SM activity", percent], ["busy", "Busy: a kernel ran", percent], ["powerWatts", "Power", (n) => `${Math.round(n)} W`], ["memoryPeakBytes", "Most memory so far", bytes]];
const FIRST = ["loss", "evalLoss", "accuracy", "samplesPerSecond", "learningRate"];

export function Curves({ job, reload }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  const { query } = place.value;
  const by = query.get("by") === "time" ? "time" : "step";
  const logarithmic = query.get("scale") === "log";
  const { book, loading, error } = useCurves(project, name, job.status.observedRetryGeneration ?? 0);
  const same = html`<${SameAs} command=${`stoker metrics ${inProject(project)}${name}`} path=${`${jobPath(project, name)}/metrics`} />`;
  if (error) return html`<${Failure} error=${error} again=${reload} />${same}`;
  if (loading) return html`<${Loading} what="metrics" />${same}`;
  const metrics = [...book.metrics.keys()].filter((metric) => !metric.startsWith(GPU) && metric !== CHECKPOINT).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const gpus = html`<${GpuCurves} book=${book} />`;
  if (book.metrics.size === 0)
    return html`<${Empty} title="No metrics yet."><p>${hasEnded(job) ? "The job has reported none." : "They are drawn here as soon as the job reports some."}
      A recipe does by itself; a command writes <code>$STOKER_PROGRESS_FILE</code>.</p></${Empty}>${same}`;
  const marks = checkpointsOf(job, book, by);
  return html`
    <div class="row controls">
      <${Switch} label="Over" name="by" options=${[["", "steps"], ["time", "time"]]} />
      <${Switch} label="Scale" name="scale" options=${[["", "linear"], ["log", "logarithmic"]]} />
      <span class="faint">${marks.length > 0 && "▲ checkpoint · "}Drag over a plot to look closer; a double click leads back.</span>
    </div>
    <div class="plots">${metrics.map((metric) => {
      const attempts = [...book.metrics.get(metric)].sort(([a], [b]) => a - b);
      const x = (curve) => (by === "time" ? curve.times : curve.steps);
      const lines = attempts.map(([attempt, curve]) => ({ label: attempts.length > 1 ? `attempt ${attempt}` : "", x: x(curve), y: curve.values }));
      const bands = attempts.length > 1 ? attempts.map(([attempt, curve]) => ({ label: `attempt ${attempt}`, from: x(curve)[0], to: x(curve).at(-1) })) : [];
      return html`<${Plot} key=${metric} title=${plain(metric)} ...${{ lines, bands, marks, logarithmic }} time=${by === "time"} together=${name} />`;
    })}</div>
    ${gpus}
    ${marks.length > 0 && html`<p class="faint">${marks.length > MOST_NAMED ? `The newest of ${marks.length} checkpoints` : "Checkpoints"}: ${marks.slice(-MOST_NAMED).map(({ label }) => label).join(", ")}.</p>`}
    ${same}`;
}

const MOST_NAMED = 5;
const rank = (metric) => (FIRST.includes(metric) ? FIRST.indexOf(metric) : FIRST.length);

/** What the exporter measured, a line per GPU; over time, since a GPU knows no steps. */
function GpuCurves({ book }) {
  const kinds = OF_GPUS.map(([kind, title, format]) => ({ title, format, found: [...book.metrics].filter(([metric]) => metric.startsWith(GPU) && metric.endsWith(`/${kind}`)) })).filter(({ found }) => found.length > 0);
  if (kinds.length === 0) return null;
  const lineOf = ([metric, attempts]) => {
    const [, worker, uuid] = metric.split("/");
    const parts = [...attempts.values()];
    return { label: `worker ${worker} ${uuid}`, x: parts.flatMap(({ times }) => times), y: parts.flatMap(({ values }) => values) };
  };
  return html`<h2 class="of-gpus">Its GPUs</h2><div class="plots">${kinds.map(({ title, format, found }) =>
    html`<${Plot} key=${title} title=${title} lines=${found.map(lineOf)} time together="gpus" format=${format} />`)}</div>`;
}

/** All that have been reported, and the newest of each attempt as the job itself has it. */
function checkpointsOf(job, book, by) {
  const reported = [...(book.metrics.get(CHECKPOINT)?.values() ?? [])].flatMap(({ times, values }) => values.map((step, n) => ({ step, at: times[n] })));
  const own = [...(job.status.attempts ?? []).map(({ progress }) => progress?.checkpoint), job.status.progress?.checkpoint].filter(Boolean);
  const known = [...reported, ...own.filter(({ step }) => !reported.some((one) => one.step === step))].sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
  const found = new Map();
  for (const checkpoint of known) {
    const at = by === "time" ? checkpoint?.at : checkpoint?.step;
    if (at) found.set(at, { at, label: `step ${checkpoint.step}${checkpoint.at ? ` at ${clock(checkpoint.at)}` : ""}` });
  }
  return [...found.values()];
}
