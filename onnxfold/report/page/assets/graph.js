"use strict";
// The graphs of a document, drawn by Cytoscape: zoom, search, and what is known of a node.

const KINDS = {
  variable: ["--variable", "changes with the inputs"],
  "runtime constant": ["--runtime", "runtime constant"],
  "known from shapes": ["--shapes", "turned out to be constant: shapes, rewrites"],
  constant: ["--constant", "constant: depends on the file alone"],
  input: ["--input", "model input"],
};

function kindOf(node) {
  const proved = node.by === "constant-propagation" || node.by === "symbolic-shapes";
  return node.constness === "variable" && proved ? "known from shapes" : node.constness;
}

// What a graph of the document is to Cytoscape: nodes with places, edges, and both ways between
// nodes and values.
function prepare(graph, aspect) {
  const maker = new Map();
  const drawn = [];
  const hasTrunk = graph.nodes.some((node) => kindOf(node) === "variable");
  graph.values.forEach(([name, type, kind], value) => {
    if (kind !== "input") return;
    maker.set(value, drawn.length);
    drawn.push({ input: value, label: name, kind: "input", from: [], aside: 0, width: 104, name });
  });
  const first = drawn.length;
  graph.nodes.forEach((node, k) => node.outputs.forEach((value) => maker.set(value, first + k)));
  for (const node of graph.nodes) {
    const isConstant = node.op === "Constant";
    const from = [...node.inputs, ...(node.bodies || [])].map((value) => maker.get(value));
    drawn.push({
      node,
      label: isConstant ? "" : node.op,
      kind: kindOf(node),
      name: node.name || (node.outputs.length ? graph.values[node.outputs[0]][0] : node.op),
      from: [...new Set(from)].filter((k) => k !== undefined && k < drawn.length),
      width: isConstant ? 14 : Math.min(150, 30 + 6.6 * node.op.length),
      floats: node.constness !== "variable",
      aside: hasTrunk && kindOf(node) !== "variable" ? 1 : 0,
    });
  }
  drawn.forEach((each) => (each.slot = 0));
  const places = layOut(drawn, aspect);
  const elements = drawn.map((each, k) => ({
    data: { id: `n${k}`, label: each.label.length > 24 ? `${each.label.slice(0, 22)}…` : each.label, width: each.width },
    position: { x: places[k].x, y: places[k].y },
    classes: `${each.kind.replaceAll(" ", "-")}${each.node && each.node.gone ? " gone" : ""}${each.label ? "" : " dot"}`,
  }));
  drawn.forEach((each, k) => each.from.forEach((other) => elements.push({
    data: { id: `e${k}-${other}`, source: `n${other}`, target: `n${k}` },
    classes: places[k].column === places[other].column ? "" : "far",
  })));
  return { graph, drawn, places, elements, maker };
}

function graphStyle() {
  const ink = color("--ink");
  const line = color("--edge");
  const style = [
    { selector: "node", style: {
      shape: "round-rectangle", width: "data(width)", height: 26, label: "data(label)", color: "#fff", "font-size": 11,
      "font-family": "system-ui, sans-serif", "text-valign": "center", "text-halign": "center", "min-zoomed-font-size": 7,
      "border-width": 1.5, "overlay-opacity": 0 } },
    { selector: "edge", style: { "curve-style": "haystack", "haystack-radius": 0, width: 1, "line-color": line, "overlay-opacity": 0 } },
    { selector: "edge.far", style: { "line-style": "dotted", opacity: 0.5 } },
    { selector: "node.dot", style: { shape: "ellipse", height: 14 } },
    { selector: "node.input", style: { shape: "cut-rectangle" } },
  ];
  for (const [kind, [name]] of Object.entries(KINDS)) {
    const fill = color(name);
    const selector = `node.${kind.replaceAll(" ", "-")}`;
    style.push({ selector, style: { "background-color": fill, "border-color": fill, color: color("--on-node") } });
    style.push({ selector: `${selector}.gone`, style: { "background-opacity": 0.3, "border-opacity": 0.75, color: ink } });
  }
  style.push({ selector: "edge.near", style: { width: 2.5, "line-color": color("--accent"), opacity: 1, "line-style": "solid", "z-index": 9 } });
  style.push({ selector: "node.near", style: { "border-width": 3, "border-color": color("--accent") } });
  style.push({ selector: "node.chosen", style: { "border-width": 4, "border-color": color("--warm") } });
  return style;
}

class GraphView {
  constructor(graphs) {
    this.graphs = graphs;
    this.prepared = [];
    this.canvas = el("div", { class: "canvas", role: "img", "aria-label": "the graph; search finds its nodes" });
    this.details = el("div", { class: "details", "aria-live": "polite" });
    this.found = el("ol", { class: "found" });
    this.search = el("input", { type: "search", placeholder: "Search op, node or value", "aria-label": "Search the graph", oninput: () => this.find() });
    this.note = el("p", { class: "about" });
    this.legend = el("ul", { class: "legend" });
    this.tabs = graphs.map((graph, k) => el("button", { type: "button", onclick: () => this.show(k) }, graph.title));
    const button = (text, title, action) => el("button", { type: "button", title, "aria-label": title, onclick: action }, text);
    this.box = el("div", { class: "graph" },
      el("div", { class: "toolbar" }, el("div", { class: "tabs" }, ...this.tabs), this.search,
        el("div", { class: "tabs" }, button("−", "Zoom out", () => this.zoom(1 / 1.6)), button("+", "Zoom in", () => this.zoom(1.6)),
          button("Fit", "Show all", () => this.fit()))),
      this.note,
      el("div", { class: "stage" }, this.canvas, el("aside", {}, this.found, this.details)),
      this.legend);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.cy && this.cy.style(graphStyle()));
  }

  show(index) {
    const start = performance.now();
    this.shown = index;
    this.tabs.forEach((tab, k) => tab.setAttribute("aria-pressed", String(k === index)));
    const aspect = this.canvas.clientWidth / Math.max(1, this.canvas.clientHeight);
    const made = (this.prepared[index] = this.prepared[index] || prepare(this.graphs[index], aspect));
    if (this.cy) this.cy.destroy();
    this.cy = cytoscape({
      container: this.canvas, elements: made.elements, style: graphStyle(), layout: { name: "preset", fit: false }, minZoom: 0.01, maxZoom: 3,
      textureOnViewport: made.elements.length > 2000, hideEdgesOnViewport: made.elements.length > 2000, pixelRatio: "auto",
      boxSelectionEnabled: false, autoungrabify: true, autounselectify: true,
    });
    this.cy.on("tap", "node", (event) => this.choose(Number(event.target.id().slice(1)), false));
    this.cy.on("tap", (event) => { if (event.target === this.cy) this.forget(); });
    this.fit();
    this.describe(made);
    this.forget();
    if (this.search.value) this.find();
    this.cy.one("render", () => {
      document.documentElement.dataset.drawn = `${made.drawn.length} nodes in ${Math.round(performance.now() - start)} ms`;
    });
  }

  describe({ graph, drawn }) {
    const shown = graph.left_out
      ? `The first ${number(graph.nodes.length)} of ${plural(graph.total, "node")}; ${number(graph.left_out)} are left out of this page.`
      : `${plural(graph.total, "node")}.`;
    this.note.textContent = `${shown} Pale nodes are gone afterwards, dots are Constant nodes. It runs from top to bottom, column by column.`;
    const counts = new Map();
    drawn.forEach((each) => counts.set(each.kind, (counts.get(each.kind) || 0) + 1));
    this.legend.replaceChildren(...Object.entries(KINDS).filter(([kind]) => counts.has(kind)).map(([kind, [name, text]]) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = `var(${name})`;
      return el("li", {}, swatch, `${text} (${number(counts.get(kind))})`);
    }));
  }

  zoom(factor) {
    const centre = { x: this.cy.width() / 2, y: this.cy.height() / 2 };
    this.cy.zoom({ level: this.cy.zoom() * factor, renderedPosition: centre });
  }

  // By the places that are known: Cytoscape would measure every label and edge.
  fit() {
    this.cy.resize();
    const { drawn, places } = this.prepared[this.shown];
    let [left, right, bottom] = [0, 0, 0];
    places.forEach(({ x, y }, k) => {
      left = Math.min(left, x - drawn[k].width / 2);
      right = Math.max(right, x + drawn[k].width / 2);
      bottom = Math.max(bottom, y);
    });
    const [width, height] = [this.cy.width(), this.cy.height()];
    const zoom = Math.min(1.1, (width - 32) / (right - left), (height - 32) / (bottom + ROW));
    this.cy.viewport({ zoom, pan: { x: width / 2 - (zoom * (left + right)) / 2, y: height / 2 - (zoom * bottom) / 2 } });
  }

  forget() {
    this.cy.elements(".near, .chosen").removeClass("near chosen");
    this.details.replaceChildren(el("p", { class: "about" }, "Choose a node to see its shapes, what was decided, and why."));
  }

  find() {
    const words = this.search.value.trim().toLowerCase();
    const { graph, drawn } = this.prepared[this.shown];
    if (!words) { this.found.replaceChildren(); return; }
    const hits = [];
    drawn.forEach((each, k) => {
      const names = each.node ? [each.node.op, each.node.name, ...each.node.outputs.map((value) => graph.values[value][0])] : [each.name];
      if (names.some((name) => name.toLowerCase().includes(words))) hits.push(k);
    });
    const items = hits.slice(0, 40).map((k) => el("li", {},
      el("button", { type: "button", onclick: () => this.choose(k, true) }, el("b", {}, drawn[k].node ? drawn[k].node.op : "input"), " ", nameText(drawn[k].name))));
    const total = hits.length > 40 ? `${number(hits.length)} found, 40 shown` : `${number(hits.length)} found`;
    const where = graph.left_out ? ` among the first ${number(graph.nodes.length)} nodes; onnxfold explain --why NAME tells of the ${number(graph.left_out)} that are left out` : "";
    this.found.replaceChildren(el("li", { class: "about" }, total + where), ...items);
  }

  choose(k, move) {
    const chosen = this.cy.getElementById(`n${k}`);
    this.cy.batch(() => {
      this.cy.elements(".near, .chosen").removeClass("near chosen");
      chosen.neighborhood().addClass("near");
      chosen.addClass("chosen");
    });
    if (move) {
      this.cy.zoom(Math.max(this.cy.zoom(), 0.9));
      this.cy.center(chosen);
    }
    this.details.replaceChildren(...this.tell(k));
  }

  tell(k) {
    const { graph, drawn } = this.prepared[this.shown];
    const each = drawn[k];
    const rows = [];
    const row = (title, ...what) => rows.push(el("dt", {}, title), el("dd", {}, ...what));
    const typed = (value) => {
      const [name, type, kind] = graph.values[value];
      const origin = this.prepared[this.shown].maker.get(value);
      const shown = origin === undefined || origin === k ? nameText(name)
        : el("button", { type: "button", class: "link", onclick: () => this.choose(origin, true) }, nameText(name));
      return el("div", { class: "value" }, shown, " ", el("code", {}, type || "type not known"), kind === "weight" ? " weight" : null);
    };
    if (!each.node) {
      row("Input", typed(each.input));
      return [el("h3", {}, "Model input"), el("dl", {}, ...rows)];
    }
    const node = each.node;
    if (node.decision) row("Decision", el("b", {}, node.decision));
    if (node.why) row("Reason", node.why);
    row("Constness", node.constness === "variable" && each.kind !== "variable"
      ? "constant after other rewrites, though it reads an input" : node.constness);
    if (node.constness === "variable") row("Varies with", ...this.pathOf(k));
    if (node.bytes_if_folded !== undefined) row("If folded", bytes(node.bytes_if_folded));
    if (node.bytes_if_kept !== undefined) row("If kept", bytes(node.bytes_if_kept));
    if (node.by) row("Gone by", node.by);
    if (node.rules) row("Rules", node.rules.join(", "));
    if (node.from) row("Made of", nameText(node.from));
    if (node.inputs.length) row("Inputs", ...node.inputs.map(typed));
    if (node.outputs.length) row("Outputs", ...node.outputs.map(typed));
    if (node.scope) row("In", nameText(graph.scopes[node.scope]));
    return [el("h3", {}, node.op, " ", nameText(node.name, "quiet")), el("dl", {}, ...rows)];
  }

  // From a node up to what makes it variable: the first variable input, its first one, and so on.
  pathOf(k) {
    const { drawn } = this.prepared[this.shown];
    const path = [];
    let current = k;
    while (path.length < 10000) {
      const next = drawn[current].from.find((other) => drawn[other].kind === "input" || (drawn[other].node && drawn[other].node.constness === "variable"));
      if (next === undefined) break;
      path.push(next);
      current = next;
    }
    if (!path.length) return ["itself: it is random, or nobody knows its op"];
    const link = (other) => el("button", { type: "button", class: "link", onclick: () => this.choose(other, true) }, nameText(drawn[other].name));
    const last = path[path.length - 1];
    const between = path.length - 2;
    return [link(path[0]), ...(path.length > 2 ? [` ← ${plural(between, "node")}`] : []), ...(path.length > 1 ? [" ← ", link(last)] : [])];
  }
}
