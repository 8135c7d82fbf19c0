// One job: its state and what may be done with it, above the tabs. Its object and events come by one stream, live.
import { call, connection, jobPath } from "../api.js";
import { ago, duration, gpus, plain } from "../format.js";
import { attention, gpusOf, hasEnded, leftS, ranS, userOf, workersOf } from "../job_facts.js";
import { useNow } from "../load.js";
import { Failure, Loading } from "../parts/notices.js";
import { Grafana } from "../parts/grafana.js";
import { Progress } from "../parts/progress.js";
import { State } from "../parts/state.js";
import { Time } from "../parts/time.js";
import { jobAddress, place } from "../router.js";
import { may } from "../session.js";
import { follow } from "../stream.js";
import { html, useEffect, useState } from "../ui.js";
import { Actions } from "./job_actions.js";
import { Files } from "./job_files.js";
import { History } from "./job_history.js";
import { Log } from "./job_log.js";
import { Overview } from "./job_overview.js";
import { Spec } from "./job_spec.js";
import { Usage } from "./job_usage.js";

const TABS = [
  ["", "Overview", Overview],
  ["curves", "Curves", Late],
  ["log", "Log", Log],
  ["history", "Attempts and events", History],
  ["usage", "Usage", Usage],
  ["spec", "Spec", Spec],
  ["files", "Files", Files],
];
const LOOK_MS = 10_000;

export function Job({ parts: [project, name] }) {
  const { job, events, error, reload } = useJob(project, name);
  const now = useNow();
  if (error && !job) return html`<h1>${name}</h1><${Failure} error=${error} again=${reload} /><p><a href="/">All jobs</a></p>`;
  if (!job) return html`<${Loading} what=${`job ${name}`} />`;
  const left = leftS(job, now);
  const facts = [
    ["GPUs", `${gpus(gpusOf(job))}${workersOf(job) > 1 ? ` (${workersOf(job)} workers × ${job.spec.gpusPerWorker})` : ""}`],
    ["Ran", ranS(job, now) ? duration(ranS(job, now)) : "not yet"],
    ["Progress", html`<${Progress} job=${job} long />`],
    left !== null && ["Ends in about", duration(left)],
    ["User", plain(userOf(job)) || "–"],
    ["Queue", may("list queues") ? html`<a href=${`/queues?queue=${job.spec.queue}`}>${job.spec.queue}</a>` : job.spec.queue],
    ["Priority", String(job.spec.priority)],
    ["Created", html`<span title=${job.metadata.creationTimestamp}>${ago(job.metadata.creationTimestamp, now)}</span>`],
    job.status.finishedAt && ["Ended", html`<${Time} at=${job.status.finishedAt} />`],
  ].filter(Boolean);
  return html`
    <p class="crumbs"><a href="/">Jobs</a> / <a href=${`/?project=${project}`}>${project}</a></p>
    <div class="view-head job-head"><h1>${name}</h1><${State} phase=${job.status.phase} />
      <${Grafana} dashboard="job" of=${{ project, job: name, run: job.metadata.uid }} what=${`Job ${name}`} /><${Actions} job=${job} reload=${reload} /></div>
    ${job.metadata.deletionTimestamp && html`<p class="note note-warn">It is being deleted.</p>`}
    ${job.status.message !== job.status.phase.toLowerCase() && html`<p class="message">${plain(job.status.message)}</p>`}
    ${attention(job, now).filter(({ text }) => text !== job.status.message).map((note) => html`<p class=${`note note-${note.level}`}>${plain(note.text)}</p>`)}
    <dl class="facts">${facts.map(([title, value]) => html`<div class=${title === "Progress" ? "broad" : ""}><dt>${title}</dt><dd>${value}</dd></div>`)}</dl>
    <${Tabs} ...${{ project, name, job, events, reload, now }} />`;
}

function Tabs(shown) {
  const { project, name } = shown;
  const tab = place.value.query.get("tab") ?? "";
  const [, , view] = TABS.find(([key]) => key === tab) ?? TABS[0];
  const offered = TABS.filter(([key]) => key !== "files" || may("get trainingjobs/files", project));
  return html`
    <nav class="tabs" aria-label="Parts of the job">${offered.map(([key, text]) => html`<a href=${jobAddress(project, name, { tab: key })} aria-current=${key === tab ? "page" : undefined}>${text}</a>`)}</nav>
    <${view} ...${shown} />`;
}

/** Curves, whose plots are half of the page's code: it comes when it is wanted, if it is not here already (main.js). */
function Late(shown) {
  const [view, setView] = useState(null);
  useEffect(() => void import("./job_curves.js").then(({ Curves }) => setView({ Curves }), (error) => setView({ error })), []);
  if (view?.error) return html`<${Failure} error=${{ message: "The plots did not come." }} again=${() => location.reload()} />`;
  return view ? html`<${view.Curves} ...${shown} />` : html`<${Loading} what="curves" />`;
}

/** The job, live, and its events. */
function useJob(project, name) {
  const [state, setState] = useState({ job: null, events: [], error: null });
  const [turn, setTurn] = useState(0);
  const reload = () => setTurn((n) => n + 1);
  const path = jobPath(project, name);
  useEffect(() => {
    const events = new Map();
    return follow(`${path}/events`, {
      job: (data) => setState((old) => ({ ...old, job: JSON.parse(data), error: null })),
      event: (data) => {
        const event = JSON.parse(data);
        events.set(event.metadata.name, event);
        setState((old) => ({ ...old, events: [...events.values()] }));
      },
      end: async (data) => {
        if (JSON.parse(data).reason !== "Deleted") return;
        const there = await call("GET", path).catch((error) => setState((old) => ({ ...old, job: null, error })));
        if (there) reload(); // another of the same name
      },
      problem: (error) => setState((old) => ({ ...old, job: null, error })),
    });
  }, [path, turn]);
  const over = state.job !== null && hasEnded(state.job);
  useEffect(() => {
    if (!over) return undefined; // what has ended has no stream: a retry from elsewhere is seen by asking
    const timer = setInterval(async () => {
      if (document.hidden || !connection.value.ok) return;
      const job = await call("GET", path).catch((error) => (error.status === 404 ? setState((old) => ({ ...old, job: null, error })) : null));
      if (!job) return;
      if (hasEnded(job)) setState((old) => ({ ...old, job }));
      else reload();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [over, path]);
  return { ...state, reload };
}
