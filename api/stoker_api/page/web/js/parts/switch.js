// One of a few: kept in the address.
import { place, refine } from "../router.js";
import { html } from "../ui.js";

export function Switch({ label, name, options }) {
  const value = place.value.query.get(name) ?? "";
  return html`<div class="chips" role="group" aria-label=${label}><span class="faint">${label}</span>
    ${options.map(([one, text]) => html`<button type="button" aria-pressed=${value === one} onClick=${() => refine({ [name]: one }, { replace: true })}>${text}</button>`)}</div>`;
}
