// What a view shows, asked again and again while it is looked at. The last good answer stays while a new one is awaited.
import { useCallback, useEffect, useRef, useState } from "./ui.js";

const WHEN_LOST_MS = 1500;

/**
 * `ask(signal)` at once, when `key` changes, and every `everyMs` while the tab is seen. null as a key asks for nothing.
 * Returns { data, error, loading, reload }.
 */
export function useLoad(key, ask, everyMs = 0) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const latest = useRef(ask);
  const reloading = useRef(() => {});
  latest.current = ask;
  useEffect(() => {
    if (key === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    async function turn() {
      clearTimeout(timer);
      if (busy) return;
      busy = true;
      let next = everyMs;
      try {
        const data = await latest.current(stop.signal);
        if (!stop.signal.aborted) setState({ data, error: null, loading: false });
      } catch (error) {
        if (stop.signal.aborted) return;
        setState((old) => ({ ...old, error, loading: false }));
        if (!error.status || error.status >= 500) next = WHEN_LOST_MS;
      } finally {
        busy = false;
      }
      if (next && !document.hidden && !stop.signal.aborted) timer = setTimeout(turn, next);
    }
    const onVisible = () => !document.hidden && turn();
    document.addEventListener("visibilitychange", onVisible);
    reloading.current = turn;
    setState((old) => ({ ...old, error: null, loading: true }));
    turn();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [key, everyMs]);
  return { ...state, reload: useCallback(() => reloading.current(), []) };
}

/** The time now, updated every `everyMs`. */
export function useNow(everyMs = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
