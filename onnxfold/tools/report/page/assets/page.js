"use strict";
// Builds the page from the document that it contains.

const data = JSON.parse(document.getElementById("data").textContent);
const MAX_HISTOGRAMS = 24;
const main = document.getElementById("main");

function tile(title, value, note, kind) {
  return el("div", { class: `tile ${kind || ""}` }, el("div", { class: "title" }, title), el("div", { class: "figure" }, value),
    note ? el("div", { class: "note" }, note) : null);
}

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
const beforeAfter = (before, after, format) => `${format(before)} → ${format(after)}`;

function verdict(check) {
  const maxError = Math.max(0, ...check.outputs.map((output) => Number(output.max_abs_error) || 0));
  const conditions = `on ${plural(check.runs.length, "run")} (${check.backend}, ${check.session})`;
  if (check.equal) return ["equal bit for bit", conditions, "good"];
  const error = maxError ? `, max abs error ${figure(maxError)}` : "";
  return check.passed ? ["within tolerance", conditions + error, "good"] : ["different", conditions + error, "bad"];
}

// ------------------------------------------------------------------ head

function head() {
  const titles = { optimize: "Optimized", compare: "Compared", split: "Split" };
  const title = `${titles[data.kind]}: ${baseName(data.source)}`;
  document.body.className = data.kind;
  document.title = `${title} – onnxfold`;
  const arrow = data.kind === "compare" ? " and " : " → ";
  document.getElementById("head").append(
    el("div", { class: "brand" }, "onnxfold ", data.kind), el("h1", {}, nameText(`${baseName(data.source)}`)),
    el("p", { class: "about" }, nameText(data.source), data.target ? arrow : "", data.target ? nameText(data.target) : ""),
    el("div", { class: "tiles" }, ...tiles()));
  document.getElementById("foot").append(`Created by onnxfold ${data.onnxfold}. Self-contained page.`);
}

function tiles() {
  const run = data.run;
  const elements = [];
  if (run) {
    const [before, after] = [sum(run.nodes_before), sum(run.nodes_after)];
    elements.push(tile("Nodes", beforeAfter(before, after, number), change(before, after)));
    elements.push(tile("Stored in files", beforeAfter(run.bytes_before, run.bytes_after, bytes), change(run.bytes_before, run.bytes_after)));
  }
  if (data.kind === "optimize") {
    elements.push(tile("Folded", plural(run.folded, "node"), `fold: ${seconds(run.stages.fold || 0)} of ${seconds(run.seconds)}`));
    const peak = run.pool.peak_bytes;
    elements.push(tile("Memory of constants", `at most ${bytes(peak)}`, run.peak_rss_bytes ? `process ${bytes(run.peak_rss_bytes)}` : ""));
  }
  if (data.kind !== "split") elements.push(run.check ? tile("Accuracy", ...verdict(run.check)) : tile("Accuracy", "not checked", "use --check N"));
  if (data.split) {
    const { nodes, cached, cached_bytes: cachedBytes, bytes: sizes, kernels } = data.split;
    elements.push(tile("Once", plural(nodes.runtime_fold, "node"), sizes.runtime_fold === undefined ? "nothing is folded" : `runtime_fold, ${bytes(sizes.runtime_fold)}`));
    elements.push(tile("Each time", plural(nodes.entry, "node"), `entry, ${bytes(sizes.entry)}; original ${number(nodes.original)} nodes`));
    elements.push(tile("Cached", plural(cached.length, "tensor"), `${bytes(cachedBytes)} at nominal sizes`));
    const compiled = kernels.filter((kernel) => !kernel.reason).length;
    elements.push(tile("Kernels", kernels.length ? `${compiled} of ${kernels.length}` : "none", kernels.length ? "compiled" : "onnxruntime folds"));
  }
  return elements;
}

// ------------------------------------------------------------------ sections

function operations({ nodes_before: before, nodes_after: after }) {
  const ops = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  ops.sort((a, b) => (before[b] || 0) - (before[a] || 0) || (after[b] || 0) - (after[a] || 0) || (a < b ? -1 : 1));
  const maxNodes = Math.max(1, ...ops.map((op) => Math.max(before[op] || 0, after[op] || 0)));
  const [firstTitle, secondTitle] = data.kind === "compare" ? ["a", "b"] : ["before", "after"];
  const rows = ops.map((op) => [nameText(op), bars(before[op] || 0, after[op] || 0, maxNodes), number(before[op] || 0), number(after[op] || 0)]);
  return section("operations", "Operations", `Nodes by op, including those of subgraphs and functions. Pale bars: ${firstTitle}. Dark bars: ${secondTitle}.`,
    longTable([["op"], ["", "wide"], [firstTitle, "right"], [secondTitle, "right"]], rows, 16, "dense"));
}

function memory({ points }) {
  const live = Math.max(0, ...points.map((point) => point[1]));
  const all = points.length ? points[points.length - 1][2] : 0;
  const about = `Memory of the constants over the run: ${bytes(live)} at most. Storing every intermediate result would have taken at least ${bytes(all)}. Memory-mapped weights are not counted.`;
  return section("memory", "Memory of constants", about, points.length > 1 ? memoryChart(points) : el("p", {}, "No constant required memory."));
}

function tensors({ before, after }) {
  const part = (title, side) => {
    const maxBytes = side.largest.length ? side.largest[0].bytes : 1;
    const rows = side.largest.map((row) => [el("div", {}, nameText(row.name), el("div", { class: "quiet" }, row.type)), bars(null, row.bytes, maxBytes), bytes(row.bytes)]);
    const smaller = side.count - rows.length;
    return el("div", {}, el("h3", {}, `${title}: ${plural(side.count, "tensor")}, ${bytes(side.bytes)}`),
      longTable([["tensor"], ["", "wide"], ["bytes", "right"]], rows, 8, "stack"),
      smaller > 0 ? el("p", { class: "about" }, `${plural(smaller, "smaller tensor")} not shown.`) : null);
  };
  return section("tensors", "Largest tensors", null, part("Before", before), part("After", after));
}

function rules(list) {
  const about = list.length ? "Each rule with the values of the original model that it rewrote." : "No rule was applied.";
  return section("rules", "Applied rules", about, ...list.map((rule) => el("details", {},
    el("summary", {}, el("b", {}, rule.name), ` ${number(rule.count)}×`, rule.inexact ? el("span", { class: "badge warm" }, `${number(rule.inexact)} inexact`) : null, el("span", { class: "quiet" }, ` ${rule.doc}`)),
    el("ul", { class: "places" }, ...rule.places.map((value) => el("li", {}, el("button", { class: "link", type: "button", onclick: () => show(value) }, nameText(value)))),
      rule.left_out ? el("li", { class: "about" }, `and ${number(rule.left_out)} more, not shown`) : null))));
}

function keptNodes(kept, more) {
  const groups = new Map();
  kept.forEach((node) => {
    const reason = node.reason.split(": ")[0];
    groups.set(reason, [...(groups.get(reason) || []), node]);
  });
  const ordered = [...groups].sort((a, b) => b[1].length - a[1].length);
  return section("kept", "Constant but not folded", kept.length ? "Nodes with constant inputs that were kept in the model, by reason." : "All nodes with constant inputs were folded.",
    ...ordered.map(([reason, nodes]) => el("details", {}, el("summary", {}, el("b", {}, reason), ` ${plural(nodes.length, "node")}`),
      table([["value"], ["op"], ["reason"]], nodes.map((node) => [nameText(node.value), node.op_type, node.reason])))),
    more ? el("p", { class: "about" }, `${plural(more, "more node")} not shown.`) : null);
}

function precision(run) {
  return section("precision", "Wide precision", run.rounded.length ? "Chains of constants were computed in 64 bits, except for these values: their operands were rounded first." : "Chains of constants were computed in 64 bits and rounded once.",
    run.rounded.length ? longTable([["value"], ["why"]], run.rounded.map((row) => row.map(nameText)), 16) : null,
    run.rounded_left_out ? el("p", { class: "about" }, `${plural(run.rounded_left_out, "more value")} not shown.`) : null);
}

function accuracy(check) {
  const rows = check.outputs.map((output) => [
    el("div", {}, nameText(output.name), el("div", { class: "quiet" }, `${output.dtype}[${output.shape.join(",")}]`)), output.run,
    `${number(output.differing)} of ${number(output.elements)}`, figure(output.max_abs_error), figure(output.max_rel_error),
    output.max_ulp === null ? "–" : number(output.max_ulp), output.cosine === undefined ? "–" : figure(output.cosine), number(output.nonfinite_mismatch),
    output.note ? output.note : output.bit_equal ? "equal" : output.within ? "within" : el("b", { class: "bad" }, "different")]);
  const differing = check.outputs.filter((output) => !output.bit_equal && (output.ulp_histogram || []).length > 1);
  const sizes = Object.entries(check.sizes).map(([run, dims]) => `${run}: ${Object.entries(dims).map(([name, size]) => `${name}=${size}`).join(", ")}`);
  const inDefault = check.default_session;
  const ownError = inDefault && !inDefault.equal && inDefault.own_error !== null ? `; the original differs by ${figure(inDefault.own_error)} between the two sessions` : "";
  return section("accuracy", "Accuracy", `Both models on the same inputs: ${verdict(check).slice(0, 2).join(" ")}.`,
    inDefault ? el("p", { class: "about" }, `In onnxruntime's default session: ${verdict(inDefault).slice(0, 2).join(" ")}${ownError}.`) : null,
    ...check.problems.map((text) => el("p", { class: "bad" }, text)),
    longTable([["output"], ["run"], ["differing elements", "right"], ["max abs", "right"], ["max rel", "right"], ["max ULP", "right"], ["cosine", "right"], ["NaN/Inf", "right"], ["verdict"]], rows, 24, "stack"),
    differing.length ? el("h3", {}, "Elements by their distance in units in the last place") : null,
    el("div", { class: "figures" }, ...differing.slice(0, MAX_HISTOGRAMS).map((output) =>
      el("figure", {}, el("figcaption", {}, nameText(output.name), ` in ${output.run}`), histogram(output.ulp_histogram)))),
    differing.length > MAX_HISTOGRAMS ? el("p", { class: "about" }, `${plural(differing.length - MAX_HISTOGRAMS, "more histogram")} not shown.`) : null,
    !differing.length && check.equal ? el("p", { class: "about" }, "All errors are zero, so there is no histogram.") : null,
    ...[...sizes, ...check.notes].map((text) => el("p", { class: "about" }, text)));
}

const differenceText = (result) => result.note || (result.differing
  ? `${number(result.differing)} of ${number(result.elements)} elements differ, by up to ${figure(result.max_abs_error)}` : "equal in both models");

// The results of a comparison as texts, by value name.
function comparedValues(check) {
  const texts = new Map();
  if (!check) return texts;
  check.outputs.forEach((output) => texts.set(output.name, [texts.get(output.name), `${output.run}: ${differenceText(output)}`].filter(Boolean).join("; ")));
  const first = check.first_difference;
  if (!first) return texts;
  Object.entries(first.ingredients).forEach(([name, state]) => texts.set(name, state === "equal" ? "equal in both models" : state));
  return texts.set(first.value, `first difference: ${differenceText(first.result)}`);
}

function firstDifference(difference) {
  const nodes = (title, list) => [
    el("h3", {}, title, list.length ? " computes it with" : " stores it"), ...list.map((node) => el("p", {}, nameText(node)))];
  const result = difference.result, operands = Object.entries(difference.ingredients);
  const value = el("button", { class: "link", type: "button", onclick: () => show(difference.value) }, nameText(difference.value));
  return section("first", "First difference", `The first value in topological order that differs, found in ${plural(difference.runs, "run")}.`,
    el("p", {}, el("b", {}, value), ` ${result.dtype}[${result.shape.join(",")}]: `, differenceText(result)),
    ...nodes("a", difference.nodes_a), ...nodes("b", difference.nodes_b),
    operands.length ? table([["operand"], ["in both models"]], operands.map(([name, state]) => [nameText(name), state])) : null);
}

function splitParts(split) {
  const type = (info) => (info.shape === null ? info.dtype : `${info.dtype}[${info.shape.map((dim) => (dim === null ? "?" : dim)).join(",")}]`);
  const constantsOf = new Map(split.groups.flatMap((group) => group.outputs.map((name) => [name, group.constants.join(", ")])));
  const maxBytes = Math.max(1, ...split.cached.map((info) => info.nominal_bytes || 0));
  const largest = [...split.cached].sort((a, b) => (b.nominal_bytes || 0) - (a.nominal_bytes || 0));
  const rows = largest.map((info) => [el("div", {}, nameText(info.name), el("div", { class: "quiet" }, type(info))), bars(null, info.nominal_bytes || 0, maxBytes), bytes(info.nominal_bytes), nameText(constantsOf.get(info.name) || "")]);
  const constants = split.runtime_constants.map((info) => el("div", { class: "value" }, nameText(info.name), " ", el("code", {}, type(info))));
  const reasonCounts = new Map();
  split.stays.forEach((stay) => reasonCounts.set(`${stay.op}: ${stay.reason}`, (reasonCounts.get(`${stay.op}: ${stay.reason}`) || 0) + 1));
  return [
    section("flow", "Parts of the split model", null, el("div", { class: "flow" },
      el("div", {}, el("h3", {}, "Runtime constants"), ...constants),
      el("div", {}, el("h3", {}, "Once per setting"), el("p", {}, `runtime_fold runs ${plural(split.nodes.runtime_fold, "node")} in ${plural(split.groups.reduce((count, group) => count + group.components.length, 0), "component")}.`)),
      el("div", {}, el("h3", {}, "Cached between runs"), el("p", {}, `${plural(split.cached.length, "tensor")}, ${bytes(split.cached_bytes)} at nominal sizes.`)),
      el("div", {}, el("h3", {}, "Each time"), el("p", {}, `entry runs ${plural(split.nodes.entry, "node")} of the original's ${number(split.nodes.original)}, with the cached tensors as inputs.`)))),
    section("cached", "Cached tensors", rows.length ? "Results of runtime_fold that entry reads." : "Nothing can be cached: entry is the whole model.",
      rows.length ? longTable([["tensor"], ["", "wide"], ["bytes", "right"], ["depends on"]], rows, 12, "stack") : null),
    split.kernels.length ? section("kernels", "Kernels", null, longTable([["of"], ["backend"], ["target CPU"], ["kernel", "right"], ["onnxruntime", "right"], ["note"]],
      split.kernels.map((kernel) => [nameText(kernel.outputs.join(", ")), kernel.backend, kernel.key.cpu || "", kernel.seconds === null ? "–" : seconds(kernel.seconds),
        kernel.onnxruntime_seconds === null ? "–" : seconds(kernel.onnxruntime_seconds), kernel.reason || ""]), 12)) : null,
    split.stays.length ? section("stays", "Nodes that could run once but run each time", null,
      table([["why"], ["nodes", "right"]], [...reasonCounts].sort((a, b) => b[1] - a[1]).map(([why, count]) => [why, number(count)]))) : null,
  ];
}

function theRun(run) {
  const rows = Object.entries(run.stages).map(([stage, time]) => [stage, seconds(time)]);
  rows.push([el("b", {}, "all"), el("b", {}, seconds(run.seconds))]);
  const { live, live_bytes: liveBytes, peak_bytes: peak, spilled_bytes: spilled, materialized } = run.pool;
  const constants = [["written to the result", number(materialized)], ["at most in memory", bytes(peak)], ["at the end", `${number(live)}, ${bytes(liveBytes)}`], ["moved to a scratch file", bytes(spilled)]];
  const removed = run.removed_metadata_bytes ? [`${bytes(run.removed_metadata_bytes)} of exporters' metadata; --keep-metadata keeps it`] : [];
  const lists = [["Warnings", run.warnings], ["Debugging metadata removed", removed], ["Assumptions about the inputs", run.assumptions],
    ["-O2 would also apply", Object.entries(run.withheld).map(([name, count]) => `${number(count)} ${name}`)],
    ["Other options would remove", Object.entries(run.beyond).map(([name, count]) => `${name}: ${plural(count, "node")}`)]];
  return section("run", "The run", null, el("div", { class: "columns" },
    table([["stage"], ["wall time", "right"]], rows), table([["constants"], ["", "right"]], constants)),
    ...lists.filter(([, texts]) => texts.length).map(([title, texts]) => el("div", {}, el("h3", {}, title), el("ul", {}, ...texts.map((text) => el("li", {}, text))))));
}

// ------------------------------------------------------------------ page

const view = new GraphView(data.graphs, comparedValues(data.run && data.run.check));

// Select the node of the first graph that produces a value.
function show(name) {
  document.getElementById("graph").scrollIntoView({ behavior: "smooth" });
  view.follow(["node", data.graphs[0].title, name].map(encodeURIComponent).join("/"));
}

function draw() {
  head();
  const graph = section("graph", "Graph", null, view.box);
  if (data.kind === "optimize") {
    main.append(operations(data.run), memory(data.memory), graph, tensors(data.tensors), rules(data.rules),
      keptNodes(data.run.kept, data.run.kept_left_out), ...(data.run.precision === "wide" ? [precision(data.run)] : []), ...(data.run.check ? [accuracy(data.run.check)] : []), theRun(data.run));
  } else if (data.kind === "compare") {
    const first = data.run.check.first_difference;
    main.append(accuracy(data.run.check), ...(first ? [firstDifference(first)] : []), graph, operations(data.run));
  } else {
    const [flow, ...otherSections] = splitParts(data.split);
    main.append(flow, graph, ...otherSections.filter(Boolean));
  }
  const links = [...main.querySelectorAll(":scope > section")].map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
  document.getElementById("head").append(el("nav", { "aria-label": "Sections" }, ...links));
  const follow = () => view.follow(location.hash) && document.getElementById("graph").scrollIntoView();
  addEventListener("hashchange", follow);
  setTimeout(() => { view.show(data.kind === "optimize" ? 1 : 0); follow(); }, 0);
}

draw();
