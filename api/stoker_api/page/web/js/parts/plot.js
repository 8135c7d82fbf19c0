// One plot of uPlot's, in the page's own colours. Lines differ by dashes too; the newest values stand beside it as text.
import uPlot from "../../vendor/uplot.js";
import { number } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef } from "../ui.js";

const HEIGHT = 190;
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4]];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * lines: [{ label, x, y }], each with x of its own; bands: [{ from, to, label }] shaded by turns; marks: [{ at, label }].
 * time: x are Unix seconds.
 */
export function Plot({ title, format = number, lines, bands = [], marks = [], time = false, logarithmic = false, together }) {
  const element = useRef(null);
  const plot = useRef(null);
  const extra = useRef({});
  extra.current = { bands, marks };
  const shape = JSON.stringify([lines.map(({ label }) => label), time, logarithmic]);
  useLayoutEffect(() => {
    plot.current = draw(element.current, { lines, time, logarithmic, together, extra, format });
    const sizes = new ResizeObserver(([{ contentRect }]) => plot.current.setSize({ width: Math.floor(contentRect.width), height: HEIGHT }));
    sizes.observe(element.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => plot.current.redraw();
    scheme.addEventListener("change", recolour);
    return () => {
      sizes.disconnect();
      scheme.removeEventListener("change", recolour);
      plot.current.destroy();
    };
  }, [shape]);
  useEffect(() => plot.current.setData(aligned(lines, logarithmic)));
  const last = lines.map(({ label, y }) => `${label ? label + ": " : ""}${format(y.at(-1))}`).join(", ");
  return html`<figure class="plot"><figcaption><strong>${title}</strong> <span class="faint latest">${last}</span> <span class="under"></span></figcaption>
    <div ref=${element} role="img" aria-label=${`${title}: ${last}`}></div></figure>`;
}

/** What uPlot takes: one x for all, and of each line its values there. */
function aligned(lines, logarithmic) {
  const usable = (value) => (value === null || (logarithmic && value <= 0) ? null : value);
  return uPlot.join(lines.map(({ x, y }) => {
    // Of equal x the last counts: a step that was trained again, or two reports in one moment.
    const points = new Map(x.map((at, n) => [at, usable(y[n])]));
    const order = [...points.keys()].sort((a, b) => a - b);
    return [order, order.map((at) => points.get(at))];
  }));
}

function draw(element, { lines, time, logarithmic, together, extra, format }) {
  const axis = { stroke: () => style("--faint"), grid: { stroke: () => style("--line"), width: 1 }, ticks: { stroke: () => style("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  const options = {
    width: Math.max(200, element.clientWidth), height: HEIGHT,
    legend: { show: false },
    cursor: { sync: together ? { key: together } : undefined, y: false, drag: { x: true, y: false } },
    scales: { x: { time }, y: logarithmic ? { distr: 3 } : {} },
    axes: [{ ...axis, size: 30 }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) }],
    series: [{}, ...lines.map((_, n) => ({
      stroke: () => style(`--series-${n % 6}`), width: 1.6, dash: DASHES[Math.floor(n / 6) % DASHES.length], spanGaps: true, points: { show: (plot, at) => plot.data[at].length < 3 },
    }))],
    hooks: { drawClear: [(plot) => shade(plot, extra.current.bands)], draw: [(plot) => mark(plot, extra.current.marks)] },
    plugins: [reading(lines, format)],
  };
  return new uPlot(options, aligned(lines, logarithmic), element);
}

function shade({ ctx, bbox, valToPos }, bands) {
  bands.forEach(({ from, to, label }, n) => {
    const [left, right] = [from, to].map((x) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, valToPos(x, "x", true))));
    ctx.save();
    if (n % 2) {
      ctx.fillStyle = style("--band");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
    ctx.fillStyle = style("--faint");
    ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
    if (right - left > 20 * devicePixelRatio) ctx.fillText(label, left + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio, right - left - 4);
    ctx.restore();
  });
}

function mark({ ctx, bbox, valToPos }, marks) {
  for (const { at } of marks) {
    const x = valToPos(at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = style("--accent");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height - size * 2);
    ctx.lineTo(x - size, bbox.top + bbox.height);
    ctx.lineTo(x + size, bbox.top + bbox.height);
    ctx.fill();
    ctx.restore();
  }
}

/** The values under the cursor, as text in the caption. */
function reading(lines, format) {
  return {
    hooks: {
      setCursor(plot) {
        const caption = plot.root.closest("figure")?.querySelector(".under");
        const at = plot.cursor.idx;
        if (!caption) return;
        caption.textContent = at === null || at === undefined ? "" : lines.map(({ label }, n) => (plot.data[n + 1]?.[at] == null ? null : `${label ? label + " " : ""}${format(plot.data[n + 1][at])}`)).filter(Boolean).join("   ");
      },
    },
  };
}
