// The GPUs: how many work, idle or are free, and node by node who holds them. What needs a look comes first.
import { call } from "../api.js";
import { bytes, duration, gpus, ms, number, percent, plain, whole } from "../format.js";
import { keyOf, nameOf, projectOf, userOf } from "../job_facts.js";
import { useLoad, useNow } from "../load.js";
import { Grafana } from "../parts/grafana.js";
import { Empty, Failure, waiting } from "../parts/notices.js";
import { SameAs } from "../parts/same_as.js";
import { jobAddress } from "../router.js";
import { may } from "../session.js";
import { html, useLayoutEffect, useRef } from "../ui.js";

const EVERY_MS = 5000;
const MOST = 500;
const HOLDERS = `/v1/projects/-/jobs?phase=Starting,Running,Stopping&sort=-gpus&limit=${MOST}`;
const UNMEASURED = {
  Silent: "Its exporter does not report any more: it does not run, or does not reach the server. What its GPUs do is not measured.",
  Missing: "No exporter has reported from here. What its GPUs do is not measured.",
};
const KINDS = [["idle", "held, but idle"], ["unobserved", "held, not measured"], ["work", "held and at work"], ["hidden", "held by jobs that you may not see"], ["sick", "not usable"], ["free", "free"]];

export function Gpus() {
  const load = useLoad("gpus", async (signal) => {
    const [nodes, jobs] = await Promise.all([call("GET", "/v1/nodes", { signal }), call("GET", HOLDERS, { signal })]);
    return { nodes: nodes.items, jobs: jobs.items, more: jobs.nextCursor };
  }, EVERY_MS);
  const now = useNow(5000);
  if (!may("list gpunodes")) return html`<h1>GPUs</h1><${Empty} title="Your token may not list nodes.">An administrator can give it the right <code>list gpunodes</code>.</${Empty}>`;
  const early = waiting(load, "GPUs");
  if (early) return html`<h1>GPUs</h1>${early}`;
  const nodes = load.data.nodes.map((node) => described(node, load.data.jobs)).sort((a, b) => b.trouble - a.trouble || (a.name < b.name ? -1 : 1));
  const sums = Object.fromEntries(KINDS.map(([kind]) => [kind, nodes.reduce((sum, node) => sum + node.cells.filter((cell) => cell.kind === kind).length, 0)]));
  const total = Object.values(sums).reduce((a, b) => a + b, 0);
  return html`<div class="view-head"><h1>GPUs</h1><p class="faint">${gpus(total)} on ${whole(nodes.length)} ${nodes.length === 1 ? "node" : "nodes"}</p></div>
    ${load.error?.status && html`<${Failure} error=${load.error} again=${load.reload} />`}
    ${total === 0 ? html`<${Empty} title="There are no GPUs here.">Jobs with <code>gpusPerWorker: 0</code> run. <code>stoker up --virtual-gpus 4</code> offers simulated ones.</${Empty}>` : html`<${Now} sums=${sums} total=${total} />`}
    ${nodes.map((node) => html`<${Node} key=${node.name} node=${node} now=${now} />`)}
    ${load.data.more && html`<p class="faint">Only the ${MOST} largest jobs are shown as holders.</p>`}
    <${SameAs} command="stoker get nodes" path="/v1/nodes" />`;
}

/** A node with a cell per GPU. Which of its GPUs a job holds is not in its object: cells are by number. */
function described(node, jobs) {
  const { status, usage } = node;
  const name = node.metadata.name;
  const left = status.gpus.filter(({ unavailable }) => unavailable);
  const sick = troubles(left, status.sick ?? [], node.burnIns ?? []);
  const holders = jobs
    .map((job) => ({ job, here: (job.status.placement ?? []).filter((place) => place.node === name).length * job.spec.gpusPerWorker }))
    .filter(({ job, here }) => here > 0 || (job.status.placement ?? []).some((place) => place.node === name));
  const cells = [];
  for (const { job, here } of holders) for (let n = 0; n < here; n++) cells.push({ kind: kindOf(job), job });
  const hidden = Math.max(0, usage.gpus - cells.length);
  for (let n = 0; n < hidden; n++) cells.push({ kind: "hidden" });
  for (const { unavailable: why } of left) if (cells.length < status.gpus.length) cells.push({ kind: "sick", why });
  while (cells.length < status.gpus.length) cells.push({ kind: status.ready ? "free" : "sick", why: status.message });
  const holding = holders.filter(({ here }) => here > 0);
  const needsALook = [!status.ready, sick.length > 0, node.exporter === "Silent", node.exporter === "Missing", cells.some(({ kind }) => kind === "idle")];
  return { name, node, cells, holders: holding, sick, trouble: needsALook.reduce((sum, does) => 2 * sum + (does ? 1 : 0), 0) };
}

/** What is wrong with its GPUs, once each, with the burn-in of those that have one. On a cluster which is which is not known: all that are left out say the same. */
function troubles(left, sick, burnIns) {
  const tests = new Map(burnIns.map((test) => [test.gpu, test]));
  const known = new Set([...sick.map(({ uuid }) => uuid), ...tests.keys()]);
  const others = left.filter(({ uuid }) => (uuid ? !known.has(uuid) : known.size === 0)).map(({ index, uuid, unavailable }) => (uuid ? `GPU ${index} (${uuid}): ${unavailable}` : unavailable));
  return [
    ...sick.map(({ index, uuid, causes }) => ({ text: `GPU ${index} (${uuid}): ${causes.map(({ code, message }) => (message ? `${code} (${message})` : code)).join(", ")}`, test: tests.get(uuid) })),
    ...burnIns.filter(({ gpu }) => !sick.some(({ uuid }) => uuid === gpu)).map((test) => ({ text: `GPU ${test.index} (${test.gpu})`, test })),
    ...[...new Set(others)].map((text) => ({ text })),
  ];
}

/** Where the test of a sick GPU stands. */
function testText({ state, job = "", message = "", dueAt }, now) {
  if (state === "Testing") return html`under test by job <a href=${jobAddress(...job.split("/"))}>${plain(job)}</a>`;
  if (state === "Failed") return plain(message);
  return ms(dueAt) > now ? `waits for a burn-in, in ${duration((ms(dueAt) - now) / 1000)} at the earliest` : "waits for a burn-in";
}

function kindOf(job) {
  const { usage, phase } = job.status;
  if (phase !== "Running") return "work";
  if (usage?.idleSince) return "idle";
  return usage?.gpuSeconds > 0 && usage.unobservedSeconds < usage.gpuSeconds ? "work" : "unobserved";
}

function Now({ sums, total }) {
  const shown = KINDS.filter(([kind]) => sums[kind] > 0);
  return html`<section class="panel"><h2>Now</h2>
    <div class="strip tall" role="img" aria-label=${shown.map(([kind, text]) => `${gpus(sums[kind])} ${text}`).join(", ")}>${shown.map(([kind]) => html`<${Part} key=${kind} kind=${kind} share=${sums[kind]} />`)}</div>
    <ul class="legend">${shown.map(([kind, text]) => html`<li><span class=${`swatch gpu-${kind}`} aria-hidden="true"></span>${text} <strong>${gpus(sums[kind])}</strong> <span class="faint">${percent(sums[kind] / total)}</span></li>`)}</ul>
  </section>`;
}

function Part({ kind, share }) {
  const element = useRef(null);
  useLayoutEffect(() => { element.current.style.flexGrow = share; }, [share]);
  return html`<span ref=${element} class=${`gpu-${kind}`}></span>`;
}

function Node({ node, now }) {
  const { status, usage } = node.node;
  const models = [...new Set(status.gpus.map((gpu) => `${gpu.model}${gpu.memoryBytes ? `, ${bytes(gpu.memoryBytes)}` : ""}`))];
  return html`<section class="panel node" aria-label=${`Node ${node.name}`}>
    <div class="node-head"><h2>${plain(node.name)}</h2>
      <span class=${`state ${status.ready ? "state-running" : "state-failed"}`}><span class="shape" aria-hidden="true">${status.ready ? "●" : "✕"}</span>${status.ready ? "ready" : plain(status.message) || "not ready"}</span>
      <span class="faint">${models.map(plain).join(" · ") || "no GPU"}</span>
      <${Grafana} dashboard="gpu" of=${{ node: node.name }} what=${`Node ${node.name}`} />
      <span class="faint node-rest">${number(usage.cpuMilli / 1000)} of ${number(status.cpuMilli / 1000)} cores · ${bytes(usage.memoryBytes)} of ${bytes(status.memoryBytes)} memory held</span></div>
    <div class="cells" role="img" aria-label=${KINDS.map(([kind, text]) => [node.cells.filter((cell) => cell.kind === kind).length, text]).filter(([n]) => n > 0).map(([n, text]) => `${gpus(n)} ${text}`).join(", ") || "no GPUs"}>
      ${node.cells.map((cell) => html`<span class=${`cell gpu-${cell.kind}`} title=${cell.job ? keyOf(cell.job) : cell.why || cell.kind}></span>`)}</div>
    ${node.sick.map(({ text, test }) => html`<p class="note note-bad">${plain(text)}${test && html`; ${testText(test, now)}`}</p>`)}
    ${(status.blamed ?? []).map(({ index, uuid, blames }) => html`<p class="note note-warn">${plain(`GPU ${index} (${uuid}) is blamed by ${whole(blames.length)} ${blames.length === 1 ? "job" : "jobs"}: ${blames.map(({ message }) => message).join("; ")}`)}</p>`)}
    ${UNMEASURED[node.node.exporter] && html`<p class="note note-warn">${UNMEASURED[node.node.exporter]}</p>`}
    ${status.lostSince && html`<p class="note note-bad">It has not reported for ${duration((now - ms(status.lostSince)) / 1000)}.</p>`}
    ${node.holders.length > 0 && html`<ul class="holders">${node.holders.map(({ job, here }) => html`<li key=${job.metadata.uid}><span class=${`swatch gpu-${kindOf(job)}`} aria-hidden="true"></span><a href=${jobAddress(projectOf(job), nameOf(job))}>${keyOf(job)}</a>
      <span class="faint">${gpus(here)} · ${plain(userOf(job))}${kindOf(job) === "idle" ? ` · idle for ${duration((now - ms(job.status.usage.idleSince)) / 1000)}` : ""}</span></li>`)}</ul>`}
  </section>`;
}
