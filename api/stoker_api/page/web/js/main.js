// The page: its frame, who is signed in, and the view that the address names. Views but the first come when they are needed.
import { connection, refused, token } from "./api.js";
import { Flame } from "./parts/flame.js";
import { LostConnection } from "./parts/notices.js";
import { place, start as startRouter } from "./router.js";
import { me, signOut, start as startSession } from "./session.js";
import { html, render, signal, useEffect, useState } from "./ui.js";
import { Jobs } from "./views/jobs.js";
import { SignIn } from "./views/sign_in.js";

const VIEWS = [
  [/^\/$/, "Jobs", async () => Jobs],
  [/^\/jobs\/([^/]+)\/([^/]+)$/, "Job", async () => (await import("./views/job.js")).Job],
  [/^\/queues$/, "Queues", async () => (await import("./views/queues.js")).Queues],
  [/^\/gpus$/, "GPUs", async () => (await import("./views/gpus.js")).Gpus],
  [/^\/docs$/, "API", async () => (await import("./views/docs.js")).Docs],
  [/^\/compare$/, "Compare", async () => (await import("./views/compare.js")).Compare],
];
const LINKS = [["/", "Jobs"], ["/queues", "Queues"], ["/gpus", "GPUs"], ["/compare", "Compare"], ["/docs", "API"]];
const started = signal(false);

function View() {
  const { path } = place.value;
  const [pattern, title, load] = VIEWS.find(([pattern]) => pattern.test(path)) ?? [null, "Nothing here", null];
  const [loaded, setLoaded] = useState({});
  const parts = pattern ? pattern.exec(path).slice(1).map(decodeURIComponent) : [];
  useEffect(() => {
    document.title = `${parts.at(-1) ?? title} · Stoker`;
    if (load && loaded.title !== title) load().then((view) => setLoaded({ title, view }), () => setLoaded({ title, failed: true }));
  }, [path, title]);
  if (!load) return html`<h1>Nothing here</h1><p>There is no view at <code>${path}</code>. <a href="/">All jobs</a></p>`;
  if (loaded.title !== title) return title === "Jobs" ? html`<${Jobs} />` : html`<p class="notice loading" role="status">Loading …</p>`;
  if (loaded.failed) return html`<p class="notice" role="alert">This part of the page could not be loaded. <a href=${path} target="_self">Reload the page</a></p>`;
  return html`<${loaded.view} key=${path} parts=${parts} />`;
}

function Frame() {
  const { path } = place.value;
  const here = (to) => (to === "/" ? path === "/" || path.startsWith("/jobs/") : path === to);
  return html`
    <a class="skip" href="#main" target="_self">To the content</a>
    <header class="top">
      <a class="brand" href="/"><${Flame} />Stoker</a>
      <nav aria-label="Views">${LINKS.map(([to, name]) => html`<a href=${to} aria-current=${here(to) ? "page" : undefined}>${name}</a>`)}</nav>
      <div class="who"><span title=${`Role: ${me.value?.role}`}>${me.value?.name}</span><button type="button" class="quiet" onClick=${signOut}>Sign out</button></div>
    </header>
    <${LostConnection} />
    <main id="main" tabindex="-1"><${View} /></main>`;
}

function Page() {
  const open = place.value.path === "/docs" && !me.value;
  if (!started.value) return html`<p class="boot" role="status">Loading Stoker …</p>`;
  if (open) return html`<header class="top"><a class="brand" href="/"><${Flame} />Stoker</a></header><${LostConnection} /><main id="main" tabindex="-1"><${View} /></main>`;
  if (!token.value || refused.value || (!me.value && connection.value.ok)) return html`<${SignIn} />`;
  if (!me.value) return html`<${LostConnection} /><p class="boot">Waiting for the server …</p>`;
  return html`<${Frame} />`;
}

// What may be wanted next comes while there is nothing else to do, so that it is here even if the server goes away.
addEventListener("load", () => setTimeout(() => [...VIEWS.map(([, , load]) => load), () => import("./views/job_curves.js")].forEach((load) => load().catch(() => {})), 500));

startRouter();
render(html`<${Page} />`, document.getElementById("page"));
startSession().finally(() => (started.value = true));
