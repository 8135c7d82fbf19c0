// Values as people read them: each with its unit, times in the reader's zone, and text of users made harmless to read.
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DATE = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const WHOLE = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const DAY_S = 86_400;

/** Seconds: "4 m 09 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return seconds < 10 && seconds % 1 && seconds > 0 ? `${Math.max(0.1, seconds).toFixed(1)} s` : `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${pad(s % 60)} s`;
  if (s < DAY_S) return `${Math.floor(s / 3600)} h ${pad(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / DAY_S)} d ${Math.floor((s % DAY_S) / 3600)} h`;
}

const pad = (n) => String(n).padStart(2, "0");

/** Milliseconds of a time of the api's (ISO 8601, or Unix seconds); null if there is none. */
export function ms(at) {
  if (at === null || at === undefined || at === "") return null;
  const found = typeof at === "number" ? at * 1000 : Date.parse(at);
  return Number.isFinite(found) ? found : null;
}

/** A time as short as can be: of today by the clock, else with its day. */
export function clock(at) {
  const time = ms(at);
  if (time === null) return "–";
  return (new Date(time).toDateString() === new Date().toDateString() ? TIME : DATE).format(time);
}

export const fullTime = (at) => (ms(at) === null ? "" : FULL.format(ms(at)));

export function ago(at, now) {
  const time = ms(at);
  return time === null ? "–" : `${duration(Math.max(0, Math.floor((now - time) / 1000))).replace(/^(\d+ [mhd]) .*/, "$1")} ago`;
}

export const whole = (n) => WHOLE.format(n);

/** A measured number, in four digits or so. */
export function number(n) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return n.toExponential(2);
  if (Number.isInteger(n) || size >= 1000) return n.toLocaleString(undefined, { maximumFractionDigits: size >= 1000 ? 0 : 1 });
  return String(Number(n.toPrecision(4)));
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let size = n;
  let at = 0;
  while (size >= 1024 && at < UNITS.length - 1) [size, at] = [size / 1024, at + 1];
  return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[at]}`;
}

export const percent = (share) => (Number.isFinite(share) ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : "–");
export const plural = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;
export const gpus = (n) => plural(n, "GPU");
export const gpuHours = (seconds) => `${number(Number((seconds / 3600).toFixed(seconds < 360 ? 4 : 2)))} GPU-h`;

export function energy(joules) {
  if (joules === null || joules === undefined) return "–";
  return joules < 3.6e6 ? `${number(joules / 1000)} kJ` : `${number(joules / 3.6e6)} kWh`;
}

/** An amount of a resource as reasons name it. */
export function amount(resource, n) {
  if (resource === "memory") return bytes(n);
  if (resource === "cpu") return plural(n, "core");
  if (resource?.startsWith("gpus.")) return `${whole(n)} ${resource.slice(5)} ${n === 1 ? "GPU" : "GPUs"}`;
  return resource === "gpus" || !resource ? gpus(n) : `${number(n)} ${resource}`;
}

/** "12Gi" → bytes, as Kubernetes writes quantities. */
export function quantity(text) {
  const found = /^([\d.]+)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$/.exec(String(text));
  if (!found) return Number.NaN;
  const scale = { m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50 };
  return Number(found[1]) * (scale[found[2]] ?? 1);
}

// Control characters, marks that turn the direction of writing, and what has no width: a name or a line of a log may
// hold them to look like something else. They are shown by their number.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** What a user wrote, so that nothing in it is hidden. */
export function plain(text) {
  return String(text ?? "").replace(HIDDEN, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
