// A moment: short in the text, whole (with its zone) on hover and for readers of the screen.
import { clock, fullTime, ms } from "../format.js";
import { html } from "../ui.js";

export function Time({ at }) {
  const time = ms(at);
  return time === null ? html`<span class="faint">–</span>` : html`<time datetime=${new Date(time).toISOString()} title=${fullTime(at)}>${clock(at)}</time>`;
}
