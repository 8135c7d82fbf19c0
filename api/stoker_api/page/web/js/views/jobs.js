// All jobs that the token may see: filtered, sorted and paged by the server, as the address says; live.
import { ago, duration, gpus, plain, whole } from "../format.js";
import { attention, gpusOf, keyOf, nameOf, projectOf, ranS, userOf } from "../job_facts.js";
import { useJobList } from "../job_list.js";
import { useNow } from "../load.js";
import { Bulk } from "../parts/bulk.js";
import { Empty, Failure, waiting } from "../parts/notices.js";
import { Progress } from "../parts/progress.js";
import { SameAs, inProject, quoted } from "../parts/same_as.js";
import { State } from "../parts/state.js";
import { address, jobAddress, place, refine } from "../router.js";
import { projects } from "../session.js";
import { html, useState } from "../ui.js";
import { FILTERS, Filters } from "./job_filters.js";

const NEWEST = "-created";
const COLUMNS = [
  ["State", null], ["Job", "name"], ["User", null], ["Queue", null], ["GPUs", "-gpus"], ["Ran", "-duration"], ["Progress", null],
  ["Priority", "-priority"], ["Created", NEWEST],
];

export function Jobs() {
  const { query } = place.value;
  const project = query.get("project") || only(projects()) || "-";
  const asked = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const path = address(`/v1/projects/${encodeURIComponent(project)}/jobs`, { ...asked, sort: query.get("sort"), cursor: query.get("cursor") });
  const load = useJobList(path);
  const now = useNow();
  const [chosen, setChosen] = useState(new Map());
  const jobs = load.data?.items ?? [];
  const filtered = FILTERS.some((name) => query.get(name));

  function choose(job, on) {
    const next = new Map(chosen);
    if (on) next.set(keyOf(job), job);
    else next.delete(keyOf(job));
    setChosen(next);
  }

  return html`
    <div class="view-head"><h1>Jobs</h1>${load.data && html`<p class="faint" role="status">${pageSummary(jobs, load.data, query)}</p>`}</div>
    <${Filters} project=${project} />
    ${chosen.size > 0 && html`<${Bulk} jobs=${[...chosen.values()]} onDone=${() => (setChosen(new Map()), load.reload())} />`}
    ${waiting(load, "jobs") ?? (load.error?.status && html`<${Failure} error=${load.error} again=${load.reload} />`)}
    ${load.data && jobs.length === 0 && html`<${None} filtered=${filtered} />`}
    ${jobs.length > 0 && html`<${Table} ...${{ jobs, now, chosen, choose, query, setChosen }} />`}
    ${load.data && html`<nav class="pages" aria-label="Pages">
      ${query.get("cursor") && html`<button type="button" onClick=${() => refine({ cursor: "" })}>First page</button>`}
      ${load.data.nextCursor && html`<button type="button" onClick=${() => refine({ cursor: load.data.nextCursor })}>Next page</button>`}
    </nav>`}
    <${SameAs} command=${commandFor(project, asked, query.get("sort"))} path=${path} />`;
}

const only = (seen) => (seen?.length === 1 ? seen[0] : null);

function pageSummary(jobs, page, query) {
  const many = `${whole(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}`;
  return page.nextCursor || query.get("cursor") ? `${many} on this page` : many;
}

function None({ filtered }) {
  if (filtered) return html`<${Empty} title="No job matches."><a href="/">Show all jobs</a></${Empty}>`;
  return html`<${Empty} title="There are no jobs yet.">
    <p>Submit the first one:</p>
    <div class="command"><code>stoker run --gpus 1 -- python train.py</code></div>
  </${Empty}>`;
}

function Table({ jobs, now, chosen, choose, query, setChosen }) {
  const sort = query.get("sort") || NEWEST;
  const all = jobs.every((job) => chosen.has(keyOf(job)));
  const chooseAll = (event) => setChosen(event.target.checked ? new Map(jobs.map((job) => [keyOf(job), job])) : new Map());
  const everywhere = new Set(jobs.map(projectOf)).size > 1;
  return html`<table class="jobs cards">
    <thead><tr>
      <th class="tick"><input type="checkbox" aria-label="Choose all on this page" checked=${all} onChange=${chooseAll} /></th>
      ${COLUMNS.map(([title, by]) => html`<${Head} ...${{ title, by, sort }} />`)}
    </tr></thead>
    <tbody>${jobs.map((job) => html`<${Row} key=${job.metadata.uid} ...${{ job, now, everywhere }} chosen=${chosen.has(keyOf(job))} choose=${choose} />`)}</tbody>
  </table>`;
}

function Head({ title, by, sort }) {
  const side = ["GPUs", "Ran", "Priority"].includes(title) ? "right" : "";
  if (!by) return html`<th class=${side}>${title}</th>`;
  const name = by.replace("-", "");
  const sorted = sort.replace("-", "") === name;
  const next = sorted ? (sort.startsWith("-") ? name : `-${name}`) : by;
  const state = sorted ? (sort.startsWith("-") ? "descending" : "ascending") : undefined;
  return html`<th class=${side} aria-sort=${state}>
    <button type="button" class="sort" onClick=${() => refine({ sort: next === NEWEST ? "" : next, cursor: "" })}>${title}<span aria-hidden="true">${state ? (state === "descending" ? "\u00a0↓" : "\u00a0↑") : ""}</span></button>
  </th>`;
}

function Row({ job, now, everywhere, chosen, choose }) {
  const name = nameOf(job);
  const notes = attention(job, now);
  return html`<tr class=${chosen ? "chosen" : ""}>
      <td class="tick"><input type="checkbox" aria-label=${`Choose ${name}`} checked=${chosen} onChange=${(event) => choose(job, event.target.checked)} /></td>
      <td data-label="State"><${State} phase=${job.status.phase} /></td>
      <td class="name">
        <a href=${jobAddress(projectOf(job), name)}>${everywhere && html`<span class="faint">${projectOf(job)}/</span>`}${name}</a>
        ${notes.map((note) => html`<div class=${`note note-${note.level}`}>${plain(note.text)}</div>`)}
        ${notes.length === 0 && job.status.phase === "Queued" && html`<div class="note">${plain(job.status.message)}</div>`}
      </td>
      <td data-label="User" class="cut">${plain(userOf(job))}</td>
      <td data-label="Queue">${job.spec.queue}</td>
      <td data-label="GPUs" class="right" title=${gpus(gpusOf(job))}>${whole(gpusOf(job))}</td>
      <td data-label="Ran" class=${ranS(job, now) ? "right" : "right none"}>${ranS(job, now) ? duration(ranS(job, now)) : "–"}</td>
      <td data-label="Progress" class=${job.status.progress?.step ? "" : "none"}><${Progress} job=${job} /></td>
      <td data-label="Priority" class=${job.spec.priority ? "right" : "right none"}>${whole(job.spec.priority)}</td>
      <td data-label="Created" title=${job.metadata.creationTimestamp}>${ago(job.metadata.creationTimestamp, now)}</td>
    </tr>`;
}

function commandFor(project, asked, sort) {
  const names = { phase: "--phase", queue: "--queue", user: "--user", gpuType: "--gpu-type", since: "--since", label: "--label", text: "--text" };
  const options = Object.entries(asked).filter(([, value]) => value).map(([name, value]) => `${names[name]} ${quoted(value)}`);
  return `stoker ls ${inProject(project)}${[...options, sort ? `--sort ${quoted(sort)}` : ""].filter(Boolean).join(" ")}`.trim();
}
