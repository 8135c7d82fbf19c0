// Server-Sent Events read by fetch, since a browser's own EventSource sends no token. Resumes where it was cut off. A hidden
// tab lets go of its streams: a browser has but six connections to a server, over all its tabs.
import { createParser } from "../vendor/eventsource-parser.js";
import { Lost, lost, request } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;

/**
 * Follow `path` until its `end` or until the returned function is called.
 * on: event name → function of its data (text), and its id; `problem` → function of a Problem that will not pass.
 */
export function follow(path, on) {
  let lastId = "";
  let ended = false;
  let stop = null;
  let wait = FIRST_WAIT_MS;
  let timer = 0;

  async function run() {
    stop = new AbortController();
    const headers = { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) };
    try {
      const answer = await request("GET", path, { headers, signal: stop.signal });
      wait = FIRST_WAIT_MS;
      await read(answer.body.getReader());
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status && error.status !== 429 && error.status < 500) {
        ended = true;
        on.problem?.(error);
        return;
      }
      if (!(error instanceof Lost) && !error.status) lost(); // cut off in the middle
    }
    again();
  }

  async function read(reader) {
    const text = new TextDecoder();
    const parser = createParser({
      onEvent({ event, data, id }) {
        if (id) lastId = id;
        if (event === "end") ended = true;
        on[event]?.(data, id);
      },
    });
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      parser.feed(text.decode(value, { stream: true }));
    }
  }

  function again() {
    if (ended || document.hidden) return;
    clearTimeout(timer);
    timer = setTimeout(run, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }

  function onVisible() {
    clearTimeout(timer);
    stop?.abort();
    if (!document.hidden && !ended) {
      wait = FIRST_WAIT_MS;
      run();
    }
  }

  document.addEventListener("visibilitychange", onVisible);
  run();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
    stop?.abort();
  };
}
