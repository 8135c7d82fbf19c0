// A question over the page: the browser's own dialog, so that focus stays inside and Escape leaves it.
import { html, useEffect, useRef, useState } from "../ui.js";

/** onClose: it was left without an answer. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onCancel=${(event) => (event.preventDefault(), onClose())}>
    <div class="dialog-head"><h2>${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></div>
    ${children}
  </dialog>`;
}

/** Runs `act` once at a time: [state, run]. */
export function useAct(act) {
  const [state, setState] = useState({ busy: false, error: null });
  async function run(event) {
    event?.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      await act(event);
    } catch (error) {
      setState({ busy: false, error });
    }
  }
  return [state, run];
}

/** That it works, or what went wrong. */
export function Outcome({ state }) {
  if (state.error) return html`<p class="problem" role="alert">${state.error.message}</p>`;
  return state.busy ? html`<p class="faint" role="status">Working …</p>` : null;
}
