// What a job has reported, kept as it comes in: whole curves first, then sample by sample.
import { jobPath } from "./api.js";
import { follow } from "./stream.js";
import { useEffect, useRef, useState } from "./ui.js";

const MOST_POINTS = 4000;
const REDRAW_MS = 250;

/** metric → attempt → { steps, times, values }, as the stream of metrics says. */
class CurveBook {
  constructor() {
    this.metrics = new Map();
  }

  at(metric, attempt) {
    if (!this.metrics.has(metric)) this.metrics.set(metric, new Map());
    const attempts = this.metrics.get(metric);
    if (!attempts.has(attempt)) attempts.set(attempt, { steps: [], times: [], values: [] });
    return attempts.get(attempt);
  }

  /** All of them, or what a follower that was too slow has missed. */
  take(curves, missed) {
    if (!missed) this.metrics.clear();
    for (const { metric, attempt, steps, times, values } of curves) {
      const curve = this.at(metric, attempt);
      curve.steps.push(...steps);
      curve.times.push(...times);
      curve.values.push(...values);
    }
  }

  add({ attempt, step, at, values }) {
    for (const [metric, value] of Object.entries(values)) {
      const curve = this.at(metric, attempt);
      curve.steps.push(step);
      curve.times.push(at);
      curve.values.push(value);
      if (curve.steps.length > MOST_POINTS) for (const one of [curve.steps, curve.times, curve.values]) one.splice(0, one.length - MOST_POINTS, ...one.slice(-MOST_POINTS).filter((_, n) => n % 2));
    }
  }
}

/** The job's curves, live: { book, turn, loading, error }; `turn` grows when there is something new to draw. */
export function useCurves(project, name, attempt) {
  const book = useRef(new CurveBook());
  const [state, setState] = useState({ turn: 0, loading: true, error: null });
  useEffect(() => {
    let due = 0;
    let has = false;
    const draw = () => (due ||= setTimeout(() => ((due = 0), setState((old) => ({ turn: old.turn + 1, loading: false, error: null }))), has ? REDRAW_MS : 0));
    const stop = follow(`${jobPath(project, name)}/metrics`, {
      curves(data) {
        book.current.take(JSON.parse(data).curves, has);
        has = true;
        draw();
      },
      sample: (data) => (book.current.add(JSON.parse(data)), draw()),
      end: draw,
      problem: (error) => setState((old) => ({ ...old, loading: false, error })),
    });
    return () => (clearTimeout(due), stop());
  }, [project, name, attempt]);
  return { ...state, book: book.current };
}
