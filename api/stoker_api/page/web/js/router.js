// Where the page is: the path chooses the view, the query is the view's own. Links are real ones; this follows them.
import { signal } from "./ui.js";

export const place = signal(read());

function read() {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export function address(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  // Commas and slashes stay as they are: the address is read by people.
  const text = new URLSearchParams(pairs).toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return path + (text ? "?" + text : "");
}

export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  place.value = read();
}

/** The same view with some of its query changed; "" takes a part away. */
export function refine(changes, how) {
  go(address(place.value.path, { ...Object.fromEntries(place.value.query), ...changes }), how);
}

export function jobAddress(project, name, query) {
  return address(`/jobs/${encodeURIComponent(project)}/${encodeURIComponent(name)}`, query);
}

export function start() {
  addEventListener("popstate", () => (place.value = read()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const modified = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || event.button !== 0;
    if (!link || modified || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || (url.hash && url.pathname === location.pathname)) return;
    event.preventDefault();
    const moves = url.pathname !== location.pathname;
    go(url.pathname + url.search);
    if (moves) {
      scrollTo(0, 0);
      document.querySelector("main")?.focus({ preventScroll: true });
    }
  });
}
