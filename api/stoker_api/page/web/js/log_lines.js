// A log as it comes in: the newest lines of one worker by a stream, or of all of them, by their times.
import { jobPath, request } from "./api.js";
import { follow } from "./stream.js";
import { useEffect, useState } from "./ui.js";

export const MOST_LINES = 5000;
export const MOST_WORKERS = 32;
const FIRST_LINES = 2000;
const OF_EACH = 500;
const REDRAW_MS = 150;
const EVERY_MS = 3000;

/** { lines: [{ n, text, worker, attempt }], dropped, ended, error }, live. worker: a number, or "all". */
export function useLog(project, name, { worker, attempt, workers }) {
  const [state, setState] = useState({ lines: [], dropped: 0, ended: false, error: null, loading: true });
  const base = `${jobPath(project, name)}/logs`;
  useEffect(() => {
    setState({ lines: [], dropped: 0, ended: false, error: null, loading: true });
    const options = { base, worker, attempt, workers, setState };
    return worker === "all" ? followAll(options) : followOne(options);
  }, [base, worker, attempt, workers]);
  return state;
}

function followOne({ base, worker, attempt, setState }) {
  let fresh = [];
  let due = 0;
  let counted = 0;
  let ended = false;
  function draw() {
    due ||= setTimeout(() => {
      due = 0;
      const added = fresh;
      fresh = [];
      setState((old) => {
        const lines = old.lines.concat(added);
        const over = Math.max(0, lines.length - MOST_LINES);
        return { lines: over ? lines.slice(over) : lines, dropped: old.dropped + over, ended, error: null, loading: false };
      });
    }, REDRAW_MS);
  }
  const options = new URLSearchParams({ worker, follow: "true", tailLines: String(FIRST_LINES), ...(attempt && { attempt }) });
  const stop = follow(`${base}?${options}`, {
    log(data) {
      for (const text of data.split("\n")) fresh.push({ n: counted++, text });
      draw();
    },
    attempt(data) {
      fresh.push({ n: counted++, attempt: JSON.parse(data).attempt, text: "" });
      draw();
    },
    end() {
      ended = true;
      draw();
    },
    problem: (error) => setState((old) => ({ ...old, error, loading: false })),
  });
  const shown = setTimeout(() => setState((old) => ({ ...old, loading: false })), 1500);
  return () => (clearTimeout(due), clearTimeout(shown), stop());
}

/** The newest lines of every worker, in the order of their times: asked for again and again, one stream each is too many. */
function followAll({ base, attempt, workers, setState }) {
  const stop = new AbortController();
  let timer = 0;
  async function turn() {
    if (!document.hidden) await look();
    if (!stop.signal.aborted) timer = setTimeout(turn, EVERY_MS);
  }
  async function look() {
    try {
      const all = await Promise.all(Array.from({ length: Math.min(workers, MOST_WORKERS) }, (_, worker) => lastOf(worker)));
      const lines = all.flat().sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : a.worker - b.worker || a.n - b.n));
      if (!stop.signal.aborted) setState({ lines, dropped: 0, ended: false, error: null, loading: false });
    } catch (error) {
      if (!stop.signal.aborted) setState((old) => ({ ...old, error, loading: false }));
    }
  }
  async function lastOf(worker) {
    const options = new URLSearchParams({ worker, tailLines: String(OF_EACH), timestamps: "true", ...(attempt && { attempt }) });
    try {
      const text = await (await request("GET", `${base}?${options}`, { signal: stop.signal, headers: { Accept: "text/plain" } })).text();
      return text.replace(/\n$/, "").split("\n").map((line, n) => ({ n: `${worker}.${n}`, worker, at: line.slice(0, line.indexOf(" ")), text: line.slice(line.indexOf(" ") + 1) }));
    } catch (error) {
      if (error.code === "NoLog") return [];
      throw error;
    }
  }
  turn();
  return () => (clearTimeout(timer), stop.abort());
}
