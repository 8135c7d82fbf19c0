// The product's mark.
import { html } from "../ui.js";

const ICON = new URL("../../icon.svg", import.meta.url).pathname;

export function Flame() {
  return html`<img class="flame" src=${ICON} alt="" width="22" height="22" />`;
}
