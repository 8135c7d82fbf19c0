// A page of a list of jobs, followed: the server sends what changes of it, and the order of all.
import { follow } from "./stream.js";
import { useEffect, useRef, useState } from "./ui.js";

/** { data: { items, nextCursor }, error, loading, reload }, as of useLoad. The last good page stays while a new one is awaited. */
export function useJobList(path) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  const known = useRef(new Map());
  useEffect(() => {
    setState((old) => ({ ...old, error: null, loading: true }));
    return follow(path, {
      jobs(text) {
        const { items, order, nextCursor } = JSON.parse(text);
        const all = new Map([...known.current, ...items.map((job) => [job.metadata.uid, job])]);
        known.current = new Map(order.filter((uid) => all.has(uid)).map((uid) => [uid, all.get(uid)]));
        setState({ data: { items: [...known.current.values()], nextCursor }, error: null, loading: false });
      },
      problem: (error) => setState((old) => ({ ...old, error, loading: false })),
    });
  }, [path, turn]);
  return { ...state, reload: () => setTurn(turn + 1) };
}
