// How the job's time went: what it was doing from its creation until now, in proportion, with sums.
import { duration, ms } from "../format.js";
import { hasEnded } from "../job_facts.js";
import { Time } from "../parts/time.js";
import { html, useLayoutEffect, useRef } from "../ui.js";

const KINDS = { waiting: "waiting", suspended: "suspended", starting: "starting", running: "running", held: "held after a failure" };

/** Spans one after the other: { kind, from, to (ms), attempt }. */
function spansOf(job, now) {
  const { status } = job;
  const spans = [];
  let at = ms(job.metadata.creationTimestamp);
  const add = (kind, to, attempt) => {
    if (to > at) spans.push({ kind, from: at, to, attempt });
    at = Math.max(at, to);
  };
  for (const attempt of status.attempts ?? []) {
    const ended = ms(attempt.endedAt);
    const held = (attempt.heldS ?? 0) * 1000;
    if (attempt.startedAt) {
      add("waiting", ms(attempt.startedAt));
      add("running", ended - held, attempt.number);
      add("held", ended, attempt.number);
    } else add("waiting", ended);
  }
  if (hasEnded(job)) return spans;
  if (status.placedAt) {
    add("waiting", ms(status.placedAt));
    add("starting", status.startedAt ? ms(status.startedAt) : now, status.attempt);
    if (status.startedAt) {
      const held = status.progress?.held;
      add("running", held ? ms(held.since) : now, status.attempt);
      add("held", now, status.attempt);
    }
  } else if (status.phase === "Suspended") {
    const since = status.conditions?.find(({ type, status: on }) => type === "Suspended" && on === "True")?.lastTransitionTime;
    add("waiting", since ? ms(since) : at);
    add("suspended", now);
  } else add("waiting", now);
  return spans;
}

export function Timeline({ job, now }) {
  const spans = spansOf(job, now);
  const sums = {};
  for (const { kind, from, to } of spans) sums[kind] = (sums[kind] ?? 0) + (to - from) / 1000;
  const shown = Object.entries(KINDS).filter(([kind]) => sums[kind] > 0);
  const end = spans.at(-1)?.to;
  return html`<section class="panel" aria-labelledby="time"><h2 id="time">Time</h2>
    <div class="strip" role="img" aria-label=${shown.map(([kind, text]) => `${text} ${duration(sums[kind])}`).join(", ")}>
      ${spans.map((span) => html`<${Span} ...${span} />`)}
    </div>
    <div class="strip-ends faint"><${Time} at=${job.metadata.creationTimestamp} />${hasEnded(job) && end ? html`<${Time} at=${job.status.finishedAt} />` : html`<span>now</span>`}</div>
    <ul class="legend">${shown.map(([kind, text]) => html`<li><span class=${`swatch span-${kind}`} aria-hidden="true"></span>${text} <strong>${duration(sums[kind])}</strong></li>`)}</ul>
  </section>`;
}

function Span({ kind, from, to, attempt }) {
  const element = useRef(null);
  useLayoutEffect(() => { element.current.style.flexGrow = Math.max(1, to - from); }, [from, to]);
  const title = `${KINDS[kind]} ${duration((to - from) / 1000)}${attempt ? `, attempt ${attempt}` : ""}`;
  return html`<span ref=${element} class=${`span-${kind}`} title=${title}></span>`;
}
