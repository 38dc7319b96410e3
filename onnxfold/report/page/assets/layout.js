"use strict";
// Places for the nodes of a graph, in time linear in its size: layers from top to bottom, in as many
// columns as make the whole about as wide as it is to be.

const ROW = 54;
const GAP = 16;
const MOST_WIDTH = 1000;

// nodes: in an order in which they can run; each has `width`, `from` (indices of nodes that it reads)
// `floats` (it can be anywhere above what reads it) and `aside` (1 beside the trunk, 0 in it). aspect: width by height of the whole.
function layOut(nodes, aspect) {
  const level = nodes.map(() => 0);
  nodes.forEach((node, k) => {
    for (const other of node.from) level[k] = Math.max(level[k], level[other] + 1);
  });
  const least = nodes.map(() => Infinity);
  for (let k = nodes.length - 1; k >= 0; k--) {
    if (nodes[k].floats && least[k] !== Infinity) level[k] = Math.max(level[k], least[k] - 1);
    for (const other of nodes[k].from) least[other] = Math.min(least[other], level[k]);
  }
  const layers = [];
  level.forEach((depth, k) => (layers[depth] = layers[depth] || []).push(k));
  const rows = layers.filter(Boolean).flatMap((layer) => rowsOf(order(layer, nodes), nodes));
  return columnsOf(rows, nodes, aspect);
}

// Beside each other as what they read is; those that are only beside the trunk come last.
function order(layer, nodes) {
  for (const k of layer) {
    const from = nodes[k].from;
    nodes[k].rank = from.length ? from.reduce((sum, other) => sum + nodes[other].slot, 0) / from.length : 0;
  }
  layer.sort((a, b) => nodes[a].aside - nodes[b].aside || nodes[a].rank - nodes[b].rank || a - b);
  layer.forEach((k, slot) => (nodes[k].slot = slot - (layer.length - 1) / 2));
  return layer;
}

function rowsOf(layer, nodes) {
  const rows = [[]];
  let width = 0;
  for (const k of layer) {
    if (width && width + nodes[k].width > MOST_WIDTH) {
      rows.push([]);
      width = 0;
    }
    rows[rows.length - 1].push(k);
    width += nodes[k].width + GAP;
  }
  return rows;
}

// How far a row reaches to both sides of the line on which its trunk is.
function reachOf(row, nodes) {
  const taken = (aside) => row.reduce((sum, k) => sum + (nodes[k].aside === aside ? nodes[k].width + GAP : 0), 0);
  const trunk = taken(0);
  return { left: trunk / 2, right: trunk / 2 + taken(1) };
}

function columnsOf(rows, nodes, aspect) {
  const reaches = rows.map((row) => reachOf(row, nodes));
  const height = heightOf(reaches, aspect);
  const places = [];
  let left = 0;
  for (let start = 0; start < rows.length; start += height) {
    const column = reaches.slice(start, start + height);
    const line = left + Math.max(...column.map((reach) => reach.left));
    for (let k = start; k < Math.min(start + height, rows.length); k++) {
      let x = line - reaches[k].left;
      for (const node of rows[k]) {
        places[node] = { x: x + (nodes[node].width + GAP) / 2, y: (k - start) * ROW, column: left };
        x += nodes[node].width + GAP;
      }
    }
    left += widthOf(column) + 4 * GAP;
  }
  return places;
}

const widthOf = (column) => Math.max(...column.map((reach) => reach.left)) + Math.max(...column.map((reach) => reach.right));

// The number of rows of a column with which all of it is drawn largest.
function heightOf(reaches, aspect) {
  let best = reaches.length;
  let largest = 0;
  for (let columns = 1; columns <= Math.min(60, reaches.length / 6 + 1); columns++) {
    const height = Math.ceil(reaches.length / columns);
    let whole = -4 * GAP;
    for (let start = 0; start < reaches.length; start += height) whole += widthOf(reaches.slice(start, start + height)) + 4 * GAP;
    const scale = Math.min(aspect / whole, 1 / (height * ROW));
    if (scale > largest * 1.02) [best, largest] = [height, scale];
  }
  return best;
}
