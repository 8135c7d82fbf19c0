// The job's spec as YAML, or what differs from another job's.
import { call, jobPath } from "../api.js";
import { nameOf, projectOf } from "../job_facts.js";
import { plain } from "../format.js";
import { useLoad } from "../load.js";
import { waiting } from "../parts/notices.js";
import { Copy, SameAs, inProject } from "../parts/same_as.js";
import { place, refine } from "../router.js";
import { html } from "../ui.js";
import { difference, yaml } from "../yaml.js";

export function Spec({ job, project, name }) {
  const other = place.value.query.get("against") ?? "";
  const text = yaml(job.spec);
  const submit = (event) => {
    event.preventDefault();
    refine({ against: new FormData(event.target).get("against").trim() });
  };
  return html`
    <form class="row" onSubmit=${submit}>
      <label><span>Compare with the job</span><input name="against" defaultValue=${other} placeholder="name or project/name" spellcheck=${false} autocomplete="off" /></label>
      <button type="submit">Show what differs</button>
      ${other ? html`<button type="button" class="quiet" onClick=${() => refine({ against: "" })}>Show the whole spec</button>` : html`<${Copy} text=${text} what="Copy the spec" />`}
    </form>
    ${other ? html`<${Against} key=${other} other=${other} text=${text} project=${project} name=${name} />` : html`<pre class="code" tabindex="0" aria-label="Spec">${plain(text)}</pre>`}
    <${SameAs} command=${`stoker get ${inProject(projectOf(job))}${nameOf(job)} -o yaml`} path=${jobPath(project, name)} />`;
}

function Against({ other, text, project, name }) {
  const [there, one] = other.includes("/") ? other.split("/") : [project, other];
  const load = useLoad(other, (signal) => call("GET", jobPath(there, one), { signal }));
  const early = waiting(load, other);
  if (early) return early;
  return html`<${Difference} before=${yaml(load.data.spec)} after=${text} titles=${[`${there}/${one}`, `${project}/${name}`]} />`;
}

/** Lines near a change; the others are left out. */
function Difference({ before, after, titles }) {
  const lines = difference(before, after);
  if (lines.every(([mark]) => mark === " ")) return html`<p class="notice">Both specs are the same.</p>`;
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - 3), at + 4).some(([mark]) => mark !== " "));
  return html`<p class="faint"><span class="removed">−</span> ${titles[0]} · <span class="added">+</span> ${titles[1]}</p>
    <pre class="code diff" tabindex="0" aria-label=${`What differs between ${titles[0]} and ${titles[1]}`}>${lines.map(([mark, line], at) =>
      near[at] ? html`<span class=${{ "-": "removed", "+": "added", " ": "" }[mark]}>${mark} ${plain(line)}\n</span>` : near[at - 1] && html`<span class="faint">  …\n</span>`)}</pre>`;
}
