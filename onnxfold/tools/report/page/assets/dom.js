"use strict";
// HTML elements and the formats of numbers. Names of a model are set only as text, never as HTML.

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const number = (value) => Number(value).toLocaleString("en-US");

function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = Number(value);
  while (Math.abs(size) >= 1000 && unit < units.length - 1) [size, unit] = [size / 1000, unit + 1];
  return `${unit ? size.toFixed(1) : number(size)} ${units[unit]}`;
}

function change(before, after) {
  const percent = before ? Math.round((100 * (after - before)) / before) : 0;
  if (percent) return `${percent > 0 ? "+" : "−"}${Math.abs(percent)} %`;
  return before === after ? "no change" : "changed by less than 1 %";
}

const seconds = (value) => (value >= 0.1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(1)} ms`);
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
const baseName = (path) => String(path).split(/[\\/]/).filter(Boolean).pop() || String(path);
const figure = (value) =>
  value === null || value === undefined ? "–" : typeof value === "string" ? value : Number(value.toPrecision(3)).toString();
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A name with line breaks allowed between its parts, so that it fits on a phone.
function nameText(name, className) {
  const element = el("span", { class: `name ${className || ""}` });
  for (const part of String(name).split(/(?<=[/._:])/)) element.append(part, el("wbr"));
  return element;
}

function section(id, title, about, ...children) {
  return el("section", { id, class: "card" }, el("h2", {}, title), about ? el("p", { class: "about" }, about) : null, ...children);
}

// A column is [title, class], a cell is text or an element.
function table(columns, rows, className) {
  const head = el("tr", {}, ...columns.map(([title, kind]) => el("th", { class: kind || "", scope: "col" }, title)));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((cell, k) => el("td", { class: columns[k][1] || "", "data-title": columns[k][0] }, cell))));
  return el("div", { class: "scroll" }, el("table", { class: className || "" }, el("thead", {}, head), el("tbody", {}, ...body)));
}

// A table of the first rows, with a button that shows all rows.
function longTable(columns, rows, maxRows, className) {
  const firstRows = table(columns, rows.slice(0, maxRows), className);
  if (rows.length <= maxRows) return firstRows;
  const box = el("div", {}, firstRows);
  box.append(el("button", { class: "more", type: "button", onclick: () => box.replaceChildren(table(columns, rows, className)) },
    `Show all ${number(rows.length)}`));
  return box;
}

// Two overlaid bars: before and after.
function bars(before, after, max) {
  const bar = (value, kind) => {
    const element = el("span", { class: `bar ${kind}` });
    element.style.width = `${max ? (100 * value) / max : 0}%`;
    return element;
  };
  return el("span", { class: "bars", "aria-hidden": "true" }, before ? bar(before, "before") : null, after ? bar(after, "after") : null);
}
