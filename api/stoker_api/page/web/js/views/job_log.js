// The log: of one worker or of all, live, searched as it stands here.
import { jobPath } from "../api.js";
import { plain, plural, whole } from "../format.js";
import { hasEnded, nameOf, projectOf } from "../job_facts.js";
import { MOST_LINES, MOST_WORKERS, useLog } from "../log_lines.js";
import { Empty, Failure, Loading } from "../parts/notices.js";
import { SameAs, inProject, quoted } from "../parts/same_as.js";
import { place, refine } from "../router.js";
import { html, useLayoutEffect, useRef, useState } from "../ui.js";

const NEAR_END_PX = 40;

export function Log({ job, reload }) {
  const [project, name] = [projectOf(job), nameOf(job)];
  const { query } = place.value;
  const workers = job.spec.elastic?.max ?? job.spec.workers;
  const worker = query.get("worker") ?? (workers > 1 ? "all" : "0");
  const attempt = query.get("attempt") ?? "";
  const [search, setSearch] = useState("");
  const [wrap, setWrap] = useState(true);
  const state = useLog(project, name, { worker, attempt, workers: job.status.placement?.length || workers });
  const found = search ? state.lines.filter(({ text }) => text.toLowerCase().includes(search.toLowerCase())) : state.lines;
  const which = worker === "all" ? " --all-workers" : worker !== "0" ? ` --worker ${quoted(worker)}` : "";
  const newest = job.status.attempt;
  return html`
    <div class="row controls">
      ${workers > 1 && html`<label><span>Worker</span><select value=${worker} onChange=${(event) => refine({ worker: event.target.value }, { replace: true })}>
        ${["all", ...Array(workers).keys()].map((one) => html`<option value=${one} selected=${String(one) === worker}>${one === "all" ? "all, by time" : one}</option>`)}</select></label>`}
      ${newest > 1 && html`<label><span>Attempt</span><select value=${attempt} onChange=${(event) => refine({ attempt: event.target.value }, { replace: true })}>
        <option value="" selected=${!attempt}>the newest</option>${Array.from({ length: newest }, (_, n) => newest - n).map((one) => html`<option value=${one} selected=${String(one) === attempt}>${one}</option>`)}</select></label>`}
      <label class="grow"><span>Search in the log</span><input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} spellcheck=${false} /></label>
      <label class="check"><input type="checkbox" checked=${wrap} onChange=${(event) => setWrap(event.target.checked)} /> Wrap long lines</label>
      ${search && html`<span role="status" class="faint">${plural(found.length, "line")} of ${whole(state.lines.length)}</span>`}
    </div>
    ${state.error ? html`<${Failure} error=${state.error} again=${reload} />` : state.loading ? html`<${Loading} what="the log" />`
      : state.lines.length === 0 ? html`<${Empty} title="Nothing has been printed yet.">${hasEnded(job) ? "The job has ended without a line." : "Lines come here as they are printed."}</${Empty}>`
      : html`<${Lines} lines=${found} search=${search} wrap=${wrap} many=${worker === "all"} live=${!state.ended} />`}
    ${state.dropped > 0 && html`<p class="faint">The newest ${whole(MOST_LINES)} lines are shown; <code>stoker logs ${name}</code> prints all.</p>`}
    ${worker === "all" && html`<p class="faint">The newest lines of ${workers > MOST_WORKERS ? `the first ${MOST_WORKERS} workers` : "each worker"}, by the time at which they were written.</p>`}
    <${SameAs} command=${`stoker logs ${inProject(project)}${name}${which}${attempt ? ` --attempt ${quoted(attempt)}` : ""} --follow`}
      path=${`${jobPath(project, name)}/logs?worker=${worker === "all" ? 0 : worker}${attempt ? `&attempt=${attempt}` : ""}`} />`;
}

/** Stays at the end while it is looked at there. */
function Lines({ lines, search, wrap, many, live }) {
  const box = useRef(null);
  const [atEnd, setAtEnd] = useState(true);
  useLayoutEffect(() => {
    if (atEnd) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, atEnd, wrap]);
  const onScroll = ({ target }) => setAtEnd(target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_END_PX);
  return html`<div class="log-frame"><div ref=${box} class=${`log ${wrap ? "wrap" : ""}`} tabindex="0" role="log" aria-label="Log" aria-live="off" onScroll=${onScroll}>
      ${lines.map((line) => line.attempt
        ? html`<div key=${line.n} class="attempt-begins">attempt ${line.attempt}</div>`
        : html`<div key=${line.n} class="line">${many && html`<span class="rank">[${line.worker}] </span>`}${marked(plain(line.text), search)}</div>`)}
    </div>
    ${!atEnd && html`<button type="button" class="to-end" onClick=${() => setAtEnd(true)}>${live ? "Follow the end ↓" : "To the end ↓"}</button>`}</div>`;
}

function marked(text, search) {
  if (!search) return text || " ";
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  const parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
