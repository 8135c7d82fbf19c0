// A link to one of Stoker's dashboards, where the server knows a Grafana that has them.
import { me } from "../session.js";
import { html } from "../ui.js";

/** dashboard: job, gpu or queue; of: variable → value. */
export function Grafana({ dashboard, of, what }) {
  const base = me.value?.grafana;
  if (!base) return null;
  const query = new URLSearchParams(Object.entries(of).map(([name, value]) => [`var-${name}`, value]));
  return html`<a class="button quiet small" href=${`${base}/d/stoker-${dashboard}?${query}`} target="_blank" rel="noopener noreferrer" aria-label=${`${what} in Grafana`}>Grafana ↗</a>`;
}
