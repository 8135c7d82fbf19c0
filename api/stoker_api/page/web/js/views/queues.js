// The queues as a tree: what each holds, is guaranteed, borrows and may hold, and which jobs wait in it, in what order.
import { call } from "../api.js";
import { duration, gpus, ms, number, plain, plural, quantity, bytes, whole } from "../format.js";
import { gpusOf, keyOf, nameOf, projectOf, userOf } from "../job_facts.js";
import { useJobList } from "../job_list.js";
import { useLoad, useNow } from "../load.js";
import { Grafana } from "../parts/grafana.js";
import { Empty, Failure, waiting } from "../parts/notices.js";
import { SameAs, quoted } from "../parts/same_as.js";
import { address, jobAddress, place } from "../router.js";
import { may } from "../session.js";
import { html } from "../ui.js";

const EVERY_MS = 5000;
const MOST = 200;

export function Queues() {
  const load = useLoad("queues", (signal) => call("GET", "/v1/queues", { signal }), EVERY_MS);
  const chosen = place.value.query.get("queue") ?? "";
  if (!may("list queues")) return html`<h1>Queues</h1><${Empty} title="Your token may not list queues.">An administrator can give it the right <code>list queues</code>.</${Empty}>`;
  const queues = load.data?.items ?? [];
  return html`<div class="view-head"><h1>Queues</h1></div>
    ${waiting(load, "queues") ?? (load.error?.status && html`<${Failure} error=${load.error} again=${load.reload} />`)}
    ${queues.length > 0 && html`<${Tree} queues=${queues} chosen=${chosen} />`}
    ${chosen && html`<${Waiting} key=${chosen} queue=${queues.find(({ metadata }) => metadata.name === chosen)} name=${chosen} />`}
    ${!chosen && queues.length > 0 && html`<p class="faint">Choose a queue to see who waits in it.</p>`}
    <${SameAs} command=${chosen ? `stoker get queues ${quoted(chosen)}` : "stoker queue ls"} path=${chosen ? `/v1/queues/${encodeURIComponent(chosen)}` : "/v1/queues"} />`;
}

/** Children behind their parents, with their depth. */
function inOrder(queues) {
  const names = new Set(queues.map(({ metadata }) => metadata.name));
  const below = new Map();
  for (const queue of queues) {
    const parent = names.has(queue.spec.parent) ? queue.spec.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), queue]);
  }
  const rows = [];
  const seen = new Set();
  const walk = (parent, depth) => {
    for (const queue of below.get(parent) ?? []) {
      if (seen.has(queue.metadata.name)) continue;
      seen.add(queue.metadata.name);
      rows.push({ queue, depth });
      walk(queue.metadata.name, depth + 1);
    }
  };
  walk("", 0);
  for (const queue of queues) if (!seen.has(queue.metadata.name)) rows.push({ queue, depth: 0 }); // parents in a circle
  return rows;
}

function Tree({ queues, chosen }) {
  return html`<table class="cards queues"><thead><tr><th>Queue</th><th>GPUs held</th><th class="right">Guarantee</th><th class="right">Borrowed</th><th class="right">Limit</th>
    <th class="right">Running</th><th class="right">Waiting</th><th class="right">CPU</th><th class="right">Memory</th></tr></thead>
    <tbody>${inOrder(queues).map(({ queue, depth }) => html`<${Row} key=${queue.metadata.uid} queue=${queue} depth=${depth} here=${queue.metadata.name === chosen} />`)}</tbody></table>`;
}

function Row({ queue, depth, here }) {
  const { metadata, spec, status } = queue;
  const { used, running, pending } = status;
  const { limit = {}, guarantee = {} } = spec;
  const most = limit.gpus ?? Math.max(used.gpus, guarantee.gpus ?? 0, 1);
  const borrowed = guarantee.gpus === undefined ? null : Math.max(0, used.gpus - guarantee.gpus);
  const invalid = status.conditions?.filter(({ type, status: on }) => ["Active", "Valid"].includes(type) && on === "False") ?? [];
  const none = html`<span class="faint">none</span>`;
  return html`<tr class=${here ? "chosen" : ""}>
    <td class=${`name depth-${Math.min(depth, 5)}`}><a href=${address("/queues", { queue: metadata.name })} aria-current=${here ? "true" : undefined}>${metadata.name}</a>
      ${invalid.map(({ message }) => html`<div class="note note-warn">${plain(message)}</div>`)}
      ${spec.projects && html`<div class="note">for ${spec.projects.join(", ")}</div>`}</td>
    <td data-label="GPUs held"><span class="progress"><meter min="0" max=${most} value=${used.gpus} aria-label=${`${used.gpus} of ${most} GPUs of ${metadata.name}`}></meter>${gpus(used.gpus)}</span>
      ${Object.entries(used.gpuTypes ?? {}).map(([type, n]) => html`<div class="note">${whole(n)} ${type}</div>`)}</td>
    <td data-label="Guarantee" class="right">${guarantee.gpus === undefined ? none : gpus(guarantee.gpus)}</td>
    <td data-label="Borrowed" class="right">${borrowed ? gpus(borrowed) : html`<span class="faint">–</span>`}</td>
    <td data-label="Limit" class="right">${limit.gpus === undefined ? none : gpus(limit.gpus)}</td>
    <td data-label="Running" class="right"><a href=${address("/", { queue: metadata.name, phase: "Running" })}>${plural(running.jobs, "job")}</a></td>
    <td data-label="Waiting" class="right"><a href=${address("/", { queue: metadata.name, phase: "Queued" })}>${plural(pending.jobs, "job")}</a>${pending.gpus > 0 && html`<div class="note">${gpus(pending.gpus)}</div>`}</td>
    <td data-label="CPU" class="right">${limit.cpu === undefined ? plural(quantity(used.cpu), "core") : `${number(quantity(used.cpu))} of ${plural(quantity(limit.cpu), "core")}`}</td>
    <td data-label="Memory" class="right">${bytes(quantity(used.memory))}${limit.memory !== undefined && ` of ${bytes(quantity(limit.memory))}`}</td>
  </tr>`;
}

const waitsSince = (job) => ms(job.status.queuedAt ?? job.metadata.creationTimestamp);

/** The queued jobs in the order of the queue: by priority, then by how long they have waited. */
function Waiting({ queue, name }) {
  const path = `/v1/projects/-/jobs?queue=${encodeURIComponent(name)}&phase=Queued&sort=-priority&limit=${MOST}`;
  const load = useJobList(path);
  const now = useNow();
  const early = waiting(load, "the waiting jobs");
  const jobs = [...(load.data?.items ?? [])].sort((a, b) => b.spec.priority - a.spec.priority || waitsSince(a) - waitsSince(b));
  return html`<section class="panel"><div class="node-head"><h2>Waiting in ${name}</h2><${Grafana} dashboard="queue" of=${{ queue: name }} what=${`Queue ${name}`} /></div>
    ${early ?? (jobs.length === 0 ? html`<p class="faint">No job that you may see waits here.</p>` : html`<table class="compact cards">
      <thead><tr><th>Place</th><th>Job</th><th class="right">Priority</th><th class="right">GPUs</th><th class="right">Has waited</th><th>User</th><th>Why</th></tr></thead>
      <tbody>${jobs.map((job, at) => html`<tr key=${job.metadata.uid}><td data-label="Place">${at + 1}</td>
        <td class="name"><a href=${jobAddress(projectOf(job), nameOf(job))}>${keyOf(job)}</a></td>
        <td data-label="Priority" class="right">${whole(job.spec.priority)}</td><td data-label="GPUs" class="right">${whole(gpusOf(job))}</td>
        <td data-label="Has waited" class="right">${duration((now - waitsSince(job)) / 1000)}</td><td data-label="User">${plain(userOf(job))}</td><td data-label="Why" class="wide">${plain(job.status.message)}</td></tr>`)}</tbody></table>
      <p class="faint">By priority, then by time of waiting${queue?.spec.discipline === "las" ? "; the queue's discipline is las: of one priority those go first that have had the fewest GPU-hours" : ""}.
        A smaller job may start ahead of a larger one that does not fit yet.${load.data.nextCursor ? ` Only the first ${MOST} are shown.` : ""}</p>`)}
  </section>`;
}
