"use strict";
// Charts by uPlot. They are drawn again when their size or the theme changes.

const charts = [];

function chart(height, options, data) {
  const box = el("div", { class: "chart" });
  let plot = null;
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    if (plot) plot.destroy();
    plot = new uPlot({ ...options(), width, height: height }, data, box);
  };
  charts.push(draw);
  new ResizeObserver(() => {
    if (!plot || Math.abs(plot.width - box.clientWidth) > 1) draw();
  }).observe(box);
  return { box, draw };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((draw) => draw()));

function axis(values, more) {
  return {
    stroke: color("--muted"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { stroke: color("--line"), width: 1, size: 4 },
    font: "12px system-ui, sans-serif",
    values,
    ...more,
  };
}

// In the legend, the color of a line or bar fills its marker.
const MARKERS = { width: 0, fill: (u, k) => u.series[k].stroke(u, k) };

// A point has seconds, live bytes, and bytes if nothing were freed so far.
function memoryChart(points) {
  const [maxLive, maxStored] = [1, 2].map((k) => Math.max(0, ...points.map((point) => point[k])));
  let logarithmic = maxStored > 12 * maxLive;  // on a linear axis, the lower line would be too close to 0
  const columns = [0, 1, 2].map((k) => points.map((point) => point[k]));
  const powers = () => [0, ...[...Array(12).keys()].map((k) => 10 ** (k + 3)).filter((power) => power <= Math.max(maxStored, 1000))];
  const data = [columns[0], columns[1], columns[2]];
  const format = (value, fallback) => (value === null || value === undefined ? fallback : bytes(value));
  const plot = chart(340, () => ({
    legend: { markers: MARKERS },
    scales: {
      x: { time: false },
      y: logarithmic
        ? { distr: 4, asinh: 1000, range: (u, low, high) => [0, Math.max(1000, high)] }
        : { range: (u, low, high) => [0, Math.max(1, high * 1.05)] },
    },
    axes: [
      axis((u, ticks) => ticks.map((tick) => (u.scales.x.max < 1 ? `${Number((1000 * tick).toPrecision(6))} ms` : `${Number(tick.toPrecision(6))} s`)), { space: 90 }),
      axis((u, ticks) => ticks.map((tick) => (tick === null ? "" : bytes(tick))), { size: 72, ...(logarithmic ? { splits: powers, filter: (u, ticks) => ticks } : {}) }),
    ],
    series: [
      { label: "time", value: (u, value) => (value === null || value === undefined ? `last change after ${columns[0].at(-1).toFixed(2)} s` : `${value.toFixed(3)} s`) },
      { label: "constants in memory", stroke: color("--accent"), fill: color("--accent-soft"), width: 1.5, points: { show: false }, value: (u, v) => format(v, `at most ${bytes(maxLive)}`) },
      { label: "all intermediate results stored", stroke: color("--warm"), dash: [6, 4], width: 1.5, points: { show: false }, value: (u, v) => format(v, `at least ${bytes(maxStored)}`) },
    ],
    cursor: { drag: { x: true, y: false } },
  }), data);
  const toggle = el("label", { class: "toggle" },
    el("input", { type: "checkbox", checked: logarithmic, onchange: (event) => { logarithmic = event.target.checked; plot.draw(); } }), "logarithmic");
  return el("div", {}, plot.box, toggle);
}

// counts[0] elements are equal, and counts[k] elements differ by [2^(k-1), 2^k) units in the last place.
function histogram(counts) {
  const superscript = (power) => String(power).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  const lowerBound = (k) => (k === 0 ? "0" : k < 11 ? String(2 ** (k - 1)) : `2${superscript(k - 1)}`);
  const range = (k) => (k < 2 ? String(k) : `${lowerBound(k)} to ${k < 10 ? 2 ** k - 1 : `2${superscript(k)} − 1`}`);
  const maxCount = Math.max(...counts, 1);
  const position = (count) => Math.log10(1 + count);
  const powers = [...Array(16).keys()].map((k) => 10 ** k);
  const ticks = [0, ...(maxCount < 50 ? powers.flatMap((power) => [power, 2 * power, 5 * power]) : powers)].filter((tick) => tick <= maxCount);
  const bins = counts.map((_, k) => k);
  const step = (u) => Math.ceil((counts.length * 34) / Math.max(1, u.width - 80));
  return chart(190, () => ({
    legend: { markers: MARKERS },
    scales: {
      x: { time: false, range: [-0.6, Math.max(counts.length, 4) - 0.4] },
      y: { range: [0, position(maxCount) * 1.1] },
    },
    axes: [
      axis((u, splits) => splits.map((k) => (counts[k] === undefined ? "" : lowerBound(k))),
        { splits: (u) => bins.filter((k) => k % step(u) === 0), grid: { show: false }, label: "units in the last place, from", labelSize: 20, labelFont: "12px system-ui, sans-serif" }),
      axis((u, splits) => splits.map((tick) => number(Math.round(10 ** tick - 1))), { splits: () => ticks.map(position), filter: (u, splits) => splits, size: 72 }),
    ],
    series: [
      { label: "ULP distance", value: (u, k) => (k === null || k === undefined ? "all" : range(k)) },
      { label: "elements", stroke: color("--accent"), fill: color("--accent"), width: 0, paths: uPlot.paths.bars({ size: [0.7, 48] }), points: { show: false },
        value: (u, value, series, k) => number(k === null || k === undefined ? counts.reduce((total, count) => total + count, 0) : counts[k]) },
    ],
  }), [bins, counts.map((count) => (count ? position(count) : null))]).box;
}
