"use strict";
// The graphs of a document as SVG drawings. Nodes are grouped by module; dagre computes the layout of each group.

const KINDS = {
  "depends on the inputs": ["variable", "depends on the inputs"],
  "runtime constant": ["runtime", "runtime constant"],
  "constant for each batch": ["shapes", "constant for each batch: only its sizes depend on the inputs"],
  "known from shapes": ["shapes", "constant after rewrites of shape arithmetic"],
  constant: ["constant", "constant"],
  input: ["input", "model input"],
};
const MAX_SHOWN = 80;  // boxes of a graph before any group is opened
const ARTIFICIAL_GROUP_SIZE = 60;  // consecutive nodes in an artificial group
const MAX_DIRECT = 150;  // nodes of a group outside of its inner groups
const CHARACTER_WIDTH = 6.8;  // average width of a character in the font of the drawing, in pixels
const TITLE_HEIGHT = 24;  // height of the title of an open group

// Return whether a node runs each time, because its results or only their sizes depend on the inputs.
function isVariable(node) {
  return node.constness === "depends on the inputs" || node.constness === "constant for each batch";
}

function kindOf(node) {
  const proved = node.by === "constant-propagation" || node.by === "symbolic-shapes";
  return isVariable(node) && proved ? "known from shapes" : node.constness;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// Return a graph with a list of its inputs and nodes, the index of each value's producer in the list, and the root of
// the tree of groups.
function prepare(graph) {
  const producers = new Map();
  const nodes = [];
  graph.values.forEach(([name, , kind], value) => {
    if (kind !== "input") return;
    producers.set(value, nodes.length);
    nodes.push({ input: value, label: name, kind: "input", operands: [], path: [], name });
  });
  graph.nodes.forEach((node, k) => node.outputs.forEach((value) => producers.set(value, nodes.length + k)));
  for (const node of graph.nodes) {
    const operands = [...node.inputs, ...(node.bodies || [])].map((value) => producers.get(value));
    nodes.push({
      node,
      label: node.op === "Constant" ? "" : node.op,
      kind: kindOf(node),
      name: node.name || (node.outputs.length ? graph.values[node.outputs[0]][0] : node.op),
      operands: [...new Set(operands)].filter((k) => k !== undefined && k < nodes.length),
      path: node.scope ? [graph.scopes[node.scope]] : graph.modules[node.module],
    });
  }
  nodes.forEach((each) => (each.consumers = []));
  nodes.forEach((each, k) => each.operands.forEach((other) => nodes[other].consumers.push(k)));
  const root = newGroup("", null);
  for (let k = nodes.length - 1; k >= 0; k--) {
    const each = nodes[k];
    each.path = each.path || (each.consumers.length ? nodes[each.consumers[0]].path : []);
  }
  nodes.forEach((each, k) => {
    let group = root;
    for (const name of each.path) {
      if (!group.groups.has(name)) group.groups.set(name, newGroup(name));
      group = group.groups.get(name);
    }
    each.index = k;
    group.children.push(each);
  });
  finishTree(root, null, [0]);
  for (const each of nodes) {
    for (let [a, b] of each.operands.map((other) => [nodes[other], each])) {
      while (a.depth > b.depth) a = a.parent;
      while (b.depth > a.depth) b = b.parent;
      while (a.parent !== b.parent) [a, b] = [a.parent, b.parent];
      a.parent.edges.set(`${a.id}-${b.id}`, [a, b]);
    }
  }
  root.open = true;
  let shownBoxes = root.children.length;
  for (const group of groupsBelow(root)) {
    const more = group.children.length - 1;
    if (group.parent.open && (shownBoxes < 10 || shownBoxes + more <= MAX_SHOWN)) [group.open, shownBoxes] = [true, shownBoxes + more];
  }
  return { graph, nodes, producers, root };
}

const newGroup = (name) => ({ name, groups: new Map(), children: [], edges: new Map(), open: false });

// Finish the tree: remove groups of one node, merge a group with its only inner group, and split long groups.
function finishTree(group, parent, count) {
  for (let inner of group.groups.values()) {
    while (!inner.children.length && inner.groups.size === 1) {
      const [only] = inner.groups.values();
      inner = Object.assign(only, { name: `${inner.name}/${only.name}` });
    }
    group.children.push(!inner.groups.size && inner.children.length === 1 ? inner.children[0] : inner);
  }
  const direct = group.children.filter((each) => !each.groups);
  if (direct.length > MAX_DIRECT) {
    group.children = group.children.filter((each) => each.groups);
    for (let start = 0; start < direct.length; start += ARTIFICIAL_GROUP_SIZE) {
      const children = direct.slice(start, start + ARTIFICIAL_GROUP_SIZE);
      group.children.push({ ...newGroup(`nodes ${start + 1} to ${start + children.length}`), children });
    }
  }
  Object.assign(group, { groups: new Map(), parent, id: count[0]++, depth: parent ? parent.depth + 1 : 0, size: 0 });
  for (const each of group.children) {
    if (each.groups) finishTree(each, group, count);
    else Object.assign(each, { parent: group, id: count[0]++, depth: group.depth + 1 });
    group.size += each.groups ? each.size : 1;
  }
}

// Return all groups inside a group, outer groups first.
function groupsBelow(group) {
  const groups = [group];
  for (const each of groups) groups.push(...each.children.filter((child) => child.groups));
  return groups.slice(1);
}

// Compute the positions of the boxes of an open group, and the size of the group.
function arrange(group) {
  if (group.arranged) return;
  const layout = new dagre.graphlib.Graph().setGraph({ ranksep: 26, nodesep: 16, marginx: 14, marginy: 14 }).setDefaultEdgeLabel(() => ({}));
  for (const each of group.children) {
    if (each.open) arrange(each);
    else if (each.groups) Object.assign(each, { width: Math.min(260, 76 + CHARACTER_WIDTH * each.name.length), height: 40 });
    else if (each.label) Object.assign(each, { width: Math.min(170, 24 + CHARACTER_WIDTH * each.label.length), height: 26 });
    else Object.assign(each, { width: 12, height: 12 });
    layout.setNode(String(each.id), { width: each.width, height: each.height });
  }
  for (const [a, b] of group.edges.values()) layout.setEdge(String(a.id), String(b.id));
  dagre.layout(layout);
  const { width, height } = layout.graph();
  const top = group.parent ? TITLE_HEIGHT : 0;
  const totalWidth = Math.max(width, group.parent ? 40 + CHARACTER_WIDTH * group.name.length : 0);
  const offset = (totalWidth - width) / 2;
  for (const each of group.children) {
    const { x, y } = layout.node(String(each.id));
    Object.assign(each, { x: x - each.width / 2 + offset, y: y - each.height / 2 + top });
  }
  group.lines = layout.edges().map((edge) => {
    const points = layout.edge(edge).points.map(({ x, y }) => `${(x + offset).toFixed(1)},${(y + top).toFixed(1)}`);
    return [Number(edge.v), Number(edge.w), `M${points.join("L")}`];
  });
  Object.assign(group, { arranged: true, width: totalWidth, height: height + top });
}

const cut = (text, width) => (text.length * CHARACTER_WIDTH > width - 14 ? `${text.slice(0, Math.max(1, Math.floor((width - 14) / CHARACTER_WIDTH) - 1))}…` : text);

class GraphView {
  constructor(graphs, results) {
    this.graphs = graphs;
    this.results = results;  // texts of a comparison by value name
    this.prepared = [];
    this.matches = [];
    this.canvas = el("div", { class: "canvas", tabindex: 0, role: "group", "aria-label": "the graph" });
    this.details = el("div", { class: "details", "aria-live": "polite" });
    this.matchList = el("ol", { class: "found" });
    this.search = el("input", { type: "search", placeholder: "Search op, node or value", "aria-label": "Search the graph", oninput: () => this.find(),
      onkeydown: (event) => { if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1); } });
    this.note = el("p", { class: "about" });
    this.legend = el("ul", { class: "legend" });
    this.tabs = graphs.map((graph, k) => el("button", { type: "button", onclick: () => this.show(k) }, graph.title));
    const button = (text, title, action) => el("button", { type: "button", title, "aria-label": title, onclick: action }, text);
    this.box = el("div", { class: "graph" },
      el("div", { class: "toolbar" }, el("div", { class: "tabs" }, ...this.tabs), this.search,
        el("div", { class: "tabs" }, button("−", "Zoom out", () => this.zoomTo(this.zoom / 1.4)), button("+", "Zoom in", () => this.zoomTo(this.zoom * 1.4)),
          button("Fit", "Show all", () => this.fit()), button("SVG", "Save as an SVG file", () => this.save()))),
      this.note,
      el("div", { class: "stage" }, this.canvas, el("aside", {}, this.matchList, this.details)),
      this.legend);
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomTo(this.zoom * Math.exp(-event.deltaY / 300), event);
    }, { passive: false });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" && event.buttons === 1) this.canvas.scrollBy(-event.movementX, -event.movementY);
    });
  }

  show(index) {
    this.shown = index;
    this.tabs.forEach((tab, k) => tab.setAttribute("aria-pressed", String(k === index)));
    this.prepared[index] = this.prepared[index] || prepare(this.graphs[index]);
    this.zoom = 1;
    this.selected = null;
    this.draw();
    this.canvas.scrollTo((this.root.width - this.canvas.clientWidth) / 2, 0);
    this.describeGraph();
    this.details.replaceChildren(el("p", { class: "about" }, "Select a node to see types, values, and the reason why it was folded or kept."));
    this.find();
  }

  get root() { return this.prepared[this.shown].root; }

  draw() {
    arrange(this.root);
    this.elements = new Map();
    this.svg = svg("svg", { class: "drawing", viewBox: `0 0 ${this.root.width} ${this.root.height}` }, ...this.inside(this.root));
    this.canvas.replaceChildren(this.svg);
    this.zoomTo(this.zoom);
    this.mark();
    document.documentElement.dataset.drawn = String(this.elements.size);
  }

  inside(group) {
    return [
      ...group.lines.map(([a, b, d]) => svg("path", { class: "edge", "data-a": a, "data-b": b, d })),
      ...group.children.map((each) => this.boxOf(each)),
    ];
  }

  boxOf(each) {
    const [width, height] = [each.width, each.height];
    const clickable = (action) => ({ tabindex: 0, role: "button", onclick: action, onkeydown: (event) => { if (event.key === "Enter") action(); } });
    const text = (content, x, y, attributes) => svg("text", { x, y, ...attributes }, content);
    const rect = svg("rect", { width, height, rx: each.groups ? 8 : 6 });
    const position = { transform: `translate(${each.x.toFixed(1)} ${each.y.toFixed(1)})` };
    let element;
    if (!each.groups) {
      const gone = each.node && each.node.gone ? " gone" : "";
      element = svg("g", { class: `node ${KINDS[each.kind][0]}${gone}`, ...position, ...clickable(() => this.select(each.index, false)) }, rect,
        ...(each.label ? [text(cut(each.label, width), width / 2, height / 2 + 4, { "text-anchor": "middle" })] : []),
        svg("title", {}, each.name));
    } else if (each.open) {
      element = svg("g", { class: "module open", ...position }, rect,
        svg("g", { class: "name", ...clickable(() => this.toggle(each)) }, svg("rect", { width, height: TITLE_HEIGHT, rx: 8 }), text(`− ${each.name}`, 10, 16)), ...this.inside(each));
    } else {
      element = svg("g", { class: "module", ...position, ...clickable(() => this.toggle(each)) }, rect, text(`+ ${cut(each.name, width - 10)}`, 10, 17),
        text(plural(each.size, "node"), 10, 32, { class: "count" }), svg("title", {}, each.name));
    }
    this.elements.set(each.id, element);
    return element;
  }

  // Open or close a group without moving it on the screen.
  toggle(group) {
    const position = () => this.elements.get(group.id).getBoundingClientRect();
    const before = position();
    this.open(group, !group.open);
    this.draw();
    const after = position();
    this.canvas.scrollBy(after.left - before.left, after.top - before.top);
  }

  open(group, isOpen) {
    group.open = isOpen;
    for (let outer = group; outer; outer = outer.parent) outer.arranged = false;
  }

  // Return the box that represents a node: its own, or the outermost closed group that contains it.
  visible(each) {
    let box = each;
    for (let outer = each.parent; outer; outer = outer.parent) if (!outer.open) box = outer;
    return box;
  }

  mark() {
    const { nodes } = this.prepared[this.shown];
    for (const each of this.svg.querySelectorAll(".hit, .near, .chosen")) each.classList.remove("hit", "near", "chosen");
    const add = (k, name) => this.elements.get(this.visible(nodes[k]).id).classList.add(name);
    this.matches.forEach((k) => add(k, "hit"));
    if (this.selected === null) return;
    const each = nodes[this.selected];
    [...each.operands, ...each.consumers].forEach((k) => add(k, "near"));
    add(this.selected, "chosen");
    const { id } = this.visible(each);
    for (const line of this.svg.querySelectorAll(`[data-a="${id}"], [data-b="${id}"]`)) line.classList.add("near");
  }

  describeGraph() {
    const { graph, nodes, root } = this.prepared[this.shown];
    const shown = graph.left_out
      ? `The first ${number(graph.nodes.length)} of ${plural(graph.total, "node")} are shown.`
      : `${plural(graph.total, "node")}.`;
    const counts = new Map();
    nodes.forEach((each) => counts.set(each.kind, (counts.get(each.kind) || 0) + 1));
    const modules = root.children.some((each) => each.groups) ? " Boxes with + are modules; select one to open it." : "";
    const gone = nodes.some((each) => each.node && each.node.gone) ? " Pale nodes are in no other graph." : "";
    const dots = nodes.some((each) => !each.label) ? " Dots are Constant nodes." : "";
    this.note.textContent = `${shown}${modules}${gone}${dots}`;
    this.legend.replaceChildren(...Object.entries(KINDS).filter(([kind]) => counts.has(kind)).map(([kind, [name, text]]) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = `var(--${name})`;
      return el("li", {}, swatch, `${text} (${number(counts.get(kind))})`);
    }));
  }

  // Zoom around the pointer, or around the center.
  zoomTo(zoom, event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = event ? [event.clientX - box.left, event.clientY - box.top] : [box.width / 2, box.height / 2];
    const next = Math.min(3, Math.max(0.03, zoom));
    const [left, top] = [this.canvas.scrollLeft + x, this.canvas.scrollTop + y].map((position) => (position * next) / this.zoom);
    this.zoom = next;
    this.svg.setAttribute("width", this.root.width * next);
    this.svg.setAttribute("height", this.root.height * next);
    this.canvas.scrollTo(left - x, top - y);
  }

  fit() {
    this.zoomTo(Math.min(1, this.canvas.clientWidth / this.root.width, this.canvas.clientHeight / this.root.height));
  }

  // Save the drawing with its colors as an SVG file.
  save() {
    const copy = this.svg.cloneNode(true);
    const rules = [...document.styleSheets].flatMap((each) => [...each.cssRules]).filter((rule) => (rule.selectorText || "").includes(".drawing"));
    const used = new Set(rules.flatMap((rule) => rule.cssText.match(/--[a-z-]+/g) || []));
    copy.setAttribute("style", [...used].map((name) => `${name}: ${color(name)}`).join("; "));
    const background = svg("rect", { width: "100%", height: "100%", fill: color("--bg") });
    copy.prepend(svg("style", {}, rules.map((rule) => rule.cssText).join("\n")), background);
    const text = new XMLSerializer().serializeToString(copy);
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    el("a", { href: address, download: `${baseName(data.source)}-${this.graphs[this.shown].title}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  find() {
    const query = this.search.value.trim().toLowerCase();
    const { graph, nodes } = this.prepared[this.shown];
    this.matchIndex = -1;
    this.matches = [];
    if (query) nodes.forEach((each, k) => {
      const names = each.node ? [each.node.op, each.node.name, ...each.node.outputs.map((value) => graph.values[value][0])] : [each.name];
      if (names.some((name) => name.toLowerCase().includes(query))) this.matches.push(k);
    });
    this.mark();
    const items = this.matches.slice(0, 40).map((k) => el("li", {},
      el("button", { type: "button", onclick: () => this.select(k, true) }, el("b", {}, nodes[k].node ? nodes[k].node.op : "input"), " ", nameText(nodes[k].name))));
    const total = this.matches.length > 40 ? `${number(this.matches.length)} found, 40 shown` : `${number(this.matches.length)} found`;
    const limitNote = graph.left_out ? ` among the first ${number(graph.nodes.length)} nodes; use onnxfold explain --why NAME for the other ${number(graph.left_out)}` : "";
    const hint = this.matches.length > 1 ? ". Enter selects the next one" : "";
    this.matchList.replaceChildren(...(query ? [el("li", { class: "about" }, total + limitNote + hint), ...items] : []));
  }

  next(step) {
    if (!this.matches.length) return;
    this.matchIndex = (this.matchIndex + step + this.matches.length) % this.matches.length;
    this.select(this.matches[this.matchIndex], true);
  }

  select(k, move) {
    const each = this.prepared[this.shown].nodes[k];
    this.selected = k;
    let isHidden = false;
    for (let outer = each.parent; outer; outer = outer.parent) {
      if (!outer.open) { this.open(outer, true); isHidden = true; }
    }
    if (isHidden) this.draw(); else this.mark();
    if (move) {
      const [canvas, node] = [this.canvas, this.elements.get(each.id)].map((element) => element.getBoundingClientRect());
      this.canvas.scrollBy(node.left + node.width / 2 - canvas.left - canvas.width / 2, node.top + node.height / 2 - canvas.top - canvas.height / 2);
    }
    this.details.replaceChildren(...this.describeNode(k));
    history.replaceState(null, "", `#${this.addressOf(each)}`);
  }

  // Return an address such as "node/after/NAME" with the name of the node's first result.
  addressOf(each) {
    const { graph } = this.prepared[this.shown];
    const value = each.node ? each.node.outputs[0] : each.input;
    return ["node", graph.title, value === undefined ? each.name : graph.values[value][0]].map(encodeURIComponent).join("/");
  }

  // Select the node of an address. Return false if no such node exists.
  follow(address) {
    const [kind, title, name] = address.replace(/^#/, "").split("/").map(decodeURIComponent);
    const index = this.graphs.findIndex((graph) => graph.title === title);
    if (kind !== "node" || index < 0) return false;
    if (this.shown !== index) this.show(index);
    const { graph, nodes, producers } = this.prepared[index];
    const value = graph.values.findIndex((entry) => entry[0] === name);
    const k = producers.has(value) ? producers.get(value) : nodes.findIndex((each) => each.name === name);
    if (k >= 0) this.select(k, true);
    return k >= 0;
  }

  describeNode(k) {
    const { graph, nodes, producers } = this.prepared[this.shown];
    const each = nodes[k];
    const rows = [];
    const row = (title, ...content) => rows.push(el("dt", {}, title), el("dd", {}, ...content));
    const link = (other, name) => el("button", { type: "button", class: "link", onclick: () => this.select(other, true) }, nameText(name));
    const valueText = (value) => {
      const [name, type, kind, content] = graph.values[value];
      const origin = producers.get(value);
      const compared = this.results.get(name);
      return el("div", { class: "value" }, origin === undefined || origin === k ? nameText(name) : link(origin, name), " ",
        el("code", {}, type || "unknown type"), kind === "weight" ? " weight" : null, content ? el("div", { class: "quiet" }, content) : null,
        compared ? el("div", { class: "quiet" }, compared) : null);
    };
    if (!each.node) {
      row("Input", valueText(each.input));
      return [el("h3", {}, "Model input"), el("dl", {}, ...rows)];
    }
    const node = each.node;
    if (node.decision) row("Decision", el("b", {}, node.decision));
    if (node.why) row("Reason", node.why);
    const varies = isVariable(node);
    row("Value", varies && each.kind === "known from shapes" ? "constant after rewrites, although it reads an input" : node.constness);
    if (varies) row("Depends on", ...this.pathOf(k, link));
    if (node.bytes_if_folded !== undefined) row("If folded", bytes(node.bytes_if_folded));
    if (node.bytes_if_kept !== undefined) row("If kept", bytes(node.bytes_if_kept));
    if (node.by) row("Removed by", node.by);
    if (node.rules) row("Rules", node.rules.join(", "));
    if (node.from) row("Rewritten from", nameText(node.from));
    if (node.inputs.length) row("Inputs", ...node.inputs.map(valueText));
    if (node.outputs.length) row("Outputs", ...node.outputs.map(valueText));
    const attributes = Object.entries(node.attributes || {});
    if (attributes.length) row("Attributes", ...attributes.map(([name, text]) => el("div", { class: "value" }, `${name} `, el("code", {}, text))));
    if (node.scope) row("In", nameText(graph.scopes[node.scope]));
    return [el("h3", {}, node.op, " ", nameText(node.name, "quiet")), el("dl", {}, ...rows)];
  }

  // Return a path from a node up to an input: the first operand that changes, its first such operand, and so on.
  pathOf(k, link) {
    const { nodes } = this.prepared[this.shown];
    const path = [];
    for (let index = k; index !== undefined;) {
      index = nodes[index].operands.find((other) => nodes[other].kind === "input" || isVariable(nodes[other].node));
      if (index !== undefined) path.push(index);
    }
    if (!path.length) return ["no input: its result is random or its op is unknown"];
    const names = [path[0], ...(path.length > 1 ? [path[path.length - 1]] : [])].map((other) => link(other, nodes[other].name));
    return [names[0], ...(path.length > 2 ? [` ← ${plural(path.length - 2, "node")}`] : []), ...(names[1] ? [" ← ", names[1]] : [])];
  }
}
