"use strict";
// Places for the nodes of a graph, in time linear in its size: layers from top to bottom, in as many
// columns as make the whole about as wide as it is to be.

const ROW = 54;
const GAP = 16;
const MOST_WIDTH = 1000;

// nodes: in an order in which they can run; each has `width`, `from` (indices of nodes that it reads)
// and `floats` (it can be anywhere above what reads it). aspect: width by height of the whole.
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

// Beside each other as what they read is.
function order(layer, nodes) {
  for (const k of layer) {
    const from = nodes[k].from;
    nodes[k].rank = from.length ? from.reduce((sum, other) => sum + nodes[other].slot, 0) / from.length : -1;
  }
  layer.sort((a, b) => nodes[a].rank - nodes[b].rank || a - b);
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

function columnsOf(rows, nodes, aspect) {
  const widths = rows.map((row) => row.reduce((sum, k) => sum + nodes[k].width + GAP, 0));
  const typical = [...widths].sort((a, b) => a - b)[Math.floor(widths.length * 0.9)] || 1;
  const wanted = Math.max(1, Math.round(Math.sqrt((aspect * rows.length * ROW) / (typical + 4 * GAP))));
  const columns = rows.length < 24 ? 1 : Math.min(wanted, Math.ceil(rows.length / 12));
  const height = Math.ceil(rows.length / columns);
  const places = [];
  let left = 0;
  for (let start = 0; start < rows.length; start += height) {
    const width = Math.max(...widths.slice(start, start + height));
    for (let k = start; k < Math.min(start + height, rows.length); k++) {
      let x = left + (width - widths[k]) / 2;
      for (const node of rows[k]) {
        places[node] = { x: x + nodes[node].width / 2, y: (k - start) * ROW, column: left };
        x += nodes[node].width + GAP;
      }
    }
    left += width + 4 * GAP;
  }
  return places;
}
