// Why the job is where it is: each reason with its numbers, and each change that would help with a button where the caller may.
import { call, jobPath } from "../api.js";
import { amount, bytes, duration, ms, number, plain } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { useLoad, useNow } from "../load.js";
import { waiting } from "../parts/notices.js";
import { Time } from "../parts/time.js";
import { jobAddress } from "../router.js";
import { html } from "../ui.js";
import { Apply } from "./why_changes.js";

const EVERY_MS = 4000;
const TITLES = {
  NoCapacity: "Not enough is free", QueueLimit: "The queue's limit", NeverFits: "It can never fit", GuaranteeLent: "The guarantee is lent",
  MinRuntime: "Lower priorities must run for a while first",
  NodesBlamed: "Nodes are avoided", BehindReservation: "Nodes are kept for an older job", ReservationSpent: "Nothing is kept for it",
  Preempting: "Others are being stopped for it", BackingOff: "A pause before the next attempt", Suspended: "Suspended",
  QueueMissing: "The queue is missing", RuntimeMissing: "The runtime is missing", ProjectNotAllowed: "The queue is closed to the project",
  PriorityTooHigh: "The priority is too high", WouldStart: "Would start", NoCheckpoint: "It would lose its work", Grows: "It could have more workers",
  Retries: "Retries", Cause: "The likely cause",
};

export function Why({ job, reload }) {
  const path = `${jobPath(projectOf(job), nameOf(job))}/explain`;
  const load = useLoad(`${path}#${job.status.phase}`, (signal) => call("GET", path, { signal }), hasEnded(job) ? 0 : EVERY_MS);
  const early = waiting(load, "the reasons");
  if (early) return html`<section class="panel"><h2>Why</h2>${early}</section>`;
  const { summary, blockers = [], hints = [], queues = [], position } = load.data;
  return html`<section class="panel" aria-labelledby="why"><h2 id="why">Why</h2>
    ${blockers.length === 0 && html`<p class="summary">${plain(summary)}</p>`}
    ${position && html`<p>${position === 1 ? "It is next in its queue." : `It is number ${position} in its queue.`}</p>`}
    ${blockers.length > 0 && html`<ul class="reasons">${blockers.map((reason) => html`<${Reason} ...${{ reason, job, reload }} />`)}</ul>`}
    ${hints.length > 0 && html`<h3>${hints.some(({ code }) => code === "WouldStart") ? "What would help" : "Hints"}</h3>
      <ul class="reasons">${hints.map((reason) => html`<${Reason} ...${{ reason, job, reload }} hint />`)}</ul>`}
    ${queues.length > 0 && html`<${Levels} queues=${queues} />`}
  </section>`;
}

function Reason({ reason, job, reload, hint = false }) {
  const now = useNow();
  const { code, message, resource, short, of, queue, nodes = [], jobs = [], borrowed = {}, until } = reason;
  const left = until && ms(until) - now;
  const facts = [
    queue && ["queue", html`<a href=${`/queues?queue=${queue}`}>${queue}</a>`],
    Object.keys(borrowed).length > 0 && ["borrowed by", Object.entries(borrowed).map(([name, n]) => `${name}: ${amount(resource, n)}`).join(", ")],
    nodes.length > 0 && ["nodes", nodes.map(plain).join(", ")],
    jobs.length > 0 && ["held by", html`<span class="list">${jobs.map((key) => html`<${JobLink} of=${key} />`)}</span>`],
    until && ["over", html`<${Time} at=${until} />${left > 0 && ` (in ${duration(left / 1000)})`}`],
  ].filter(Boolean);
  return html`<li class=${hint ? "hint" : "blocker"}>
    <div class="grow"><strong>${TITLES[code] ?? code}</strong>
      <p>${plain(message)}</p>
      ${short !== undefined && short !== null && of > 0 && html`<${Short} ...${{ resource, short, of, code }} />`}
      ${facts.length > 0 && html`<dl class="small-facts">${facts.map(([title, value]) => html`<dt>${title}</dt><dd>${value}</dd>`)}</dl>`}
    </div>
    <${Apply} reason=${reason} job=${job} reload=${reload} />
  </li>`;
}

function Short({ resource, short, of, code }) {
  const there = Math.max(0, of - short);
  const label = code === "GuaranteeLent" ? `${amount(resource, there)} of a guarantee of ${amount(resource, of)} held` : `${resource === "memory" ? bytes(short) : number(short)} of ${amount(resource, of)} missing`;
  return html`<div class="short"><meter min="0" max=${of} value=${there} aria-label=${label}></meter><span>${label}</span></div>`;
}

function JobLink({ of: key }) {
  const [project, name] = key.split("/");
  return html`<a href=${jobAddress(project, name)}>${key}</a>`;
}

function Levels({ queues }) {
  const rows = queues.flatMap(({ name, held, limit, guarantee }) =>
    [...new Set([...Object.keys(held), ...Object.keys(limit), ...Object.keys(guarantee)])]
      .filter((resource) => resource in limit || resource in guarantee || resource.startsWith("gpus"))
      .map((resource) => ({ name, resource, held: held[resource] ?? 0, limit: limit[resource], guarantee: guarantee[resource] })),
  );
  if (rows.length === 0) return null;
  const show = (resource, n) => (n === undefined ? html`<span class="faint">none</span>` : amount(resource, n));
  return html`<h3>Its queues</h3><table class="compact"><thead><tr><th>Queue</th><th class="right">Held</th><th class="right">Guarantee</th><th class="right">Limit</th></tr></thead>
    <tbody>${rows.map(({ name, resource, held, limit, guarantee }) => html`<tr><td><a href=${`/queues?queue=${name}`}>${name}</a></td>
      <td class="right">${amount(resource, held)}</td><td class="right">${show(resource, guarantee)}</td><td class="right">${show(resource, limit)}</td></tr>`)}</tbody></table>
    ${queues.map(({ name, problem }) => problem && html`<div class="note note-warn">${name}: ${plain(problem)}</div>`)}`;
}
