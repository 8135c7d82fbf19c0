// A job's phase: a shape and a word, never a colour alone.
import { html } from "../ui.js";

const SHAPES = { Queued: "○", Starting: "◔", Running: "●", Stopping: "◕", Suspended: "‖", Succeeded: "✓", Failed: "✕", Cancelled: "–" };

export function State({ phase }) {
  return html`<span class=${`state state-${phase.toLowerCase()}`}><span class="shape" aria-hidden="true">${SHAPES[phase] ?? "·"}</span>${phase}</span>`;
}
