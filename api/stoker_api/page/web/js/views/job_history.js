// What happened: the attempts with their cause and cost, and the events.
import { call, jobPath } from "../api.js";
import { duration, energy, gpuHours, ms, plain } from "../format.js";
import { hasEnded, nameOf, PLACED, projectOf } from "../job_facts.js";
import { useLoad } from "../load.js";
import { Empty } from "../parts/notices.js";
import { SameAs, inProject } from "../parts/same_as.js";
import { Time } from "../parts/time.js";
import { html } from "../ui.js";

const EVERY_MS = 30_000;

export function History({ job, events, now }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  return html`<${Attempts} job=${job} now=${now} /><${Events} events=${events} />
    <${SameAs} command=${`stoker events ${inProject(project)}${name}`} path=${`${jobPath(project, name)}/events`} />`;
}

function Attempts({ job, now }) {
  const path = `${jobPath(projectOf(job), nameOf(job))}/usage`;
  const { data } = useLoad(path, (signal) => call("GET", path, { signal }), hasEnded(job) ? 0 : EVERY_MS);
  const { attempts = [], attempt, phase, startedAt, message } = job.status;
  const costOf = (number) => data?.attempts?.find((one) => one.attempt === number)?.usage;
  const rows = attempts.map((one) => ({ ...one, cause: causeOf(one) }));
  if (PLACED.has(phase)) rows.push({ number: attempt, startedAt, cause: phase === "Running" ? "runs" : phase.toLowerCase(), message });
  return html`<section class="panel" aria-labelledby="attempts"><h2 id="attempts">Attempts</h2>
    ${rows.length === 0 ? html`<${Empty} title="None yet.">It has not been placed so far; Overview says why.</${Empty}>` : html`<table class="compact cards">
      <thead><tr><th>Number</th><th>Started</th><th class="right">Ran</th><th>Ended by</th><th>What happened</th><th class="right">Last step</th><th class="right">Cost</th></tr></thead>
      <tbody>${rows.reverse().map((one) => html`<tr>
        <td data-label="Number">${one.number}</td>
        <td data-label="Started"><${Time} at=${one.startedAt} /></td>
        <td data-label="Ran" class="right">${one.startedAt ? duration(((ms(one.endedAt) ?? now) - ms(one.startedAt)) / 1000 - (one.heldS ?? 0)) : "–"}</td>
        <td data-label="Ended by">${one.cause}</td>
        <td data-label="What happened" class="wide">${plain(one.message)}${one.heldS > 0 && ` (held ${duration(one.heldS)})`}</td>
        <td data-label="Last step" class="right">${one.progress?.step ?? "–"}</td>
        <td data-label="Cost" class="right">${costOf(one.number) ? `${gpuHours(costOf(one.number).gpuSeconds)}${costOf(one.number).energyJoules !== undefined ? `, ${energy(costOf(one.number).energyJoules)}` : ""}` : "–"}</td>
      </tr>`)}</tbody></table>`}
    ${attempts.length === 10 && html`<p class="faint">Only the newest ten ended attempts are kept.</p>`}
  </section>`;
}

function causeOf({ intent, category }) {
  if (category) return intent !== "None" ? `${category} (asked: ${intent})` : category;
  return intent !== "None" ? intent : "done";
}

function Events({ events }) {
  const newest = [...events].sort((a, b) => (ms(b.firstTimestamp) ?? 0) - (ms(a.firstTimestamp) ?? 0));
  return html`<section class="panel" aria-labelledby="events"><h2 id="events">Events</h2>
    ${newest.length === 0 ? html`<${Empty} title="No events.">They are kept for a while only.</${Empty}>` : html`<table class="compact cards">
      <thead><tr><th>Time</th><th>Event</th><th>Message</th></tr></thead>
      <tbody>${newest.map((event) => html`<tr key=${event.metadata.name}><td data-label="Time"><${Time} at=${event.firstTimestamp} /></td>
        <td data-label="Event"><span class=${event.type === "Warning" ? "note-warn" : ""}>${event.type === "Warning" ? "⚠ " : ""}${plain(event.reason)}</span></td>
        <td data-label="Message" class="wide">${plain(event.message)}</td></tr>`)}</tbody></table>`}
  </section>`;
}
