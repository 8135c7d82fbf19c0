// The list's filters: what they say is in the address, so that a view can be kept and passed on.
import { call } from "../api.js";
import { PHASES } from "../job_facts.js";
import { useLoad } from "../load.js";
import { place, refine } from "../router.js";
import { may, me, projects } from "../session.js";
import { html, useEffect, useRef } from "../ui.js";

export const FILTERS = ["text", "phase", "queue", "user", "gpuType", "since", "label"];
const TYPING_MS = 350;
const GROUPS = [["", "All"], ["Queued,Starting,Running,Stopping", "Not ended"], ["Running", "Running"], ["Queued", "Queued"], ["Failed", "Failed"]];
const SINCE = [["", "any time"], ["1h", "last hour"], ["1d", "last day"], ["7d", "last 7 days"], ["30d", "last 30 days"]];

const refilter = (changes) => refine({ ...changes, cursor: "" }, { replace: true });

export function Filters({ project }) {
  const { query } = place.value;
  const seen = projects();
  const phase = query.get("phase") ?? "";
  const mine = query.get("user") === me.value.name;
  const set = FILTERS.filter((name) => query.get(name));
  return html`<form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
    <${Search} />
    <div class="chips" role="group" aria-label="Phase">
      ${GROUPS.map(([value, name]) => html`<button type="button" aria-pressed=${phase === value} onClick=${() => refilter({ phase: value })}>${name}</button>`)}
      <button type="button" aria-pressed=${mine} onClick=${() => refilter({ user: mine ? "" : me.value.name })}>Mine</button>
    </div>
    <details class="more" open=${set.some((name) => !["text", "phase"].includes(name)) && !mine}>
      <summary>More filters</summary>
      <div class="fields">
        ${seen?.length !== 1 && html`<${Project} project=${project} seen=${seen} />`}
        <${Choice} label="Phase" name="phase" options=${[["", "any"], ...PHASES.map((one) => [one, one])]} />
        ${may("list queues") ? html`<${QueueChoice} />` : html`<${Typed} label="Queue" name="queue" />`}
        <${Typed} label="User" name="user" />
        <${Typed} label="GPU type" name="gpuType" hint="h100" />
        <${Typed} label="Labels" name="label" hint="team=nlp,stage!=test" />
        <${Choice} label="Created" name="since" options=${SINCE} />
      </div>
    </details>
    ${set.length > 0 && html`<button type="button" class="quiet" onClick=${() => refilter(Object.fromEntries(set.map((name) => [name, ""])))}>Clear filters</button>`}
  </form>`;
}

function Search() {
  const field = useRef(null);
  useEffect(() => {
    const onKey = (event) => {
      if (event.key !== "/" || event.target.closest("input, textarea, select, dialog")) return;
      event.preventDefault();
      field.current.focus();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
  return html`<${Typed} label="Search" name="text" hint="Search ( / ): name, label, command, message" type="search" hidden element=${field} />`;
}

function Typed({ label, name, hint, type = "text", hidden = false, element }) {
  const timer = useRef(0);
  const value = place.value.query.get(name) ?? "";
  const own = useRef(null);
  const field = element ?? own;
  useEffect(() => {
    if (document.activeElement !== field.current) field.current.value = value;
  }, [value]);
  const onInput = (event) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => refilter({ [name]: event.target.value.trim() }), TYPING_MS);
  };
  return html`<label class=${hidden ? "search" : ""}><span class=${hidden ? "unseen" : ""}>${label}</span>
    <input ref=${field} type=${type} placeholder=${hint} defaultValue=${value} onInput=${onInput} spellcheck=${false} autocomplete="off" /></label>`;
}

function Choice({ label, name, options }) {
  const value = place.value.query.get(name) ?? "";
  const all = options.some(([one]) => one === value) ? options : [...options, [value, value]];
  return html`<label><span>${label}</span>
    <select value=${value} onChange=${(event) => refilter({ [name]: event.target.value })}>
      ${all.map(([one, text]) => html`<option value=${one} selected=${one === value}>${text}</option>`)}
    </select></label>`;
}

function QueueChoice() {
  const { data } = useLoad("queues", (signal) => call("GET", "/v1/queues", { signal }));
  const names = (data?.items ?? []).map((queue) => queue.metadata.name);
  return html`<${Choice} label="Queue" name="queue" options=${[["", "any"], ...names.map((one) => [one, one])]} />`;
}

function Project({ project, seen }) {
  if (!seen) return html`<${Typed} label="Project" name="project" hint="all" />`;
  return html`<label><span>Project</span>
    <select value=${project} onChange=${(event) => refilter({ project: event.target.value })}>
      ${["-", ...seen].map((one) => html`<option value=${one} selected=${one === project}>${one === "-" ? "all" : one}</option>`)}
    </select></label>`;
}
