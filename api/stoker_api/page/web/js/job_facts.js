// What a job's object says, in the terms of the views.
import { duration, ms, number } from "./format.js";

export const PHASES = ["Queued", "Starting", "Running", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled"];
const ENDED = new Set(["Succeeded", "Failed", "Cancelled"]);
export const PLACED = new Set(["Starting", "Running", "Stopping"]);
const IDLE_SHOWN_MS = 60_000;

export const nameOf = (job) => job.metadata.name;
export const projectOf = (job) => job.metadata.namespace;
export const keyOf = (job) => `${projectOf(job)}/${nameOf(job)}`;
export const userOf = (job) => job.metadata.annotations?.["stoker.dev/submitter"] ?? "";
export const hasEnded = (job) => ENDED.has(job.status.phase);
export const workersOf = (job) => job.status.placement?.length || job.spec.workers;
export const gpusOf = (job) => workersOf(job) * (job.spec.gpusPerWorker ?? 0);

/** Seconds run over all attempts, holds included. */
export function ranS(job, now) {
  const { ranS: ran = 0, heldS: held = 0, startedAt, phase } = job.status;
  const since = startedAt && PLACED.has(phase) ? Math.max(0, (now - ms(startedAt)) / 1000) : 0;
  return ran + held + since;
}

/** How far it is: { step, total, share, text }; null if it says nothing. */
export function progressOf(job) {
  const progress = job.status.progress;
  if (!progress?.step) return null;
  const total = progress.totalSteps ?? null;
  const metrics = progress.metrics ?? {};
  const parts = [];
  if (metrics.loss !== undefined) parts.push(`loss ${number(metrics.loss)}`);
  if (metrics.accuracy !== undefined) parts.push(`accuracy ${number(metrics.accuracy * 100)} %`);
  if (metrics.samplesPerSecond !== undefined) parts.push(`${number(Math.round(metrics.samplesPerSecond))} samples/s`);
  return { step: progress.step, total, share: total ? Math.min(1, progress.step / total) : null, text: parts.join(" · ") };
}

/** Seconds until the last step at the pace of the attempt so far; null if it can't be known. */
export function leftS(job, now) {
  const progress = job.status.progress;
  const started = ms(job.status.startedAt);
  if (job.status.phase !== "Running" || !progress?.totalSteps || !progress.step || !started) return null;
  const before = job.status.attempts?.at(-1)?.progress?.checkpoint?.step ?? 0;
  const done = progress.step - before;
  const took = (Math.min(now, ms(progress.at) ?? now) - started) / 1000;
  return done > 0 && took > 0 ? ((progress.totalSteps - progress.step) * took) / done : null;
}

/** What needs a look, most urgent first: { level: "bad" | "warn", text }. */
export function attention(job, now) {
  const { phase, reason, message, progress, usage } = job.status;
  const found = [];
  const placed = PLACED.has(phase);
  if (phase === "Failed") found.push({ level: "bad", text: message || reason });
  if (placed && progress?.stalled && progress.stalled.attempt === job.status.attempt)
    found.push({ level: "bad", text: progress.stalled.message || "no progress" });
  if (placed && progress?.held) found.push({ level: "bad", text: `failed and held: ${progress.held.message || "look inside"}` });
  if (phase === "Queued" && ["NeverFits", "QueueMissing", "RuntimeMissing", "ProjectNotAllowed", "PriorityTooHigh"].includes(reason))
    found.push({ level: "bad", text: message || reason });
  if (phase === "Starting" && ["ImageUnavailable", "VolumeUnavailable", "PodUnschedulable", "NameTaken", "PodRejected"].includes(reason))
    found.push({ level: "warn", text: message || reason });
  const idleMs = usage?.idleSince && phase === "Running" ? now - ms(usage.idleSince) : 0;
  if (idleMs > IDLE_SHOWN_MS) found.push({ level: "warn", text: `GPUs idle for ${duration(idleMs / 1000)}` });
  if (phase === "Queued" && reason === "BackingOff") found.push({ level: "warn", text: message });
  return found;
}
