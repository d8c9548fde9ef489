/**
 * The panel's rows about an operator of a run and of its baseline: where the other one is, and what
 * both recorded.
 * @module
 */

import { element } from "../base/dom.js";
import { count, duration, number } from "../base/format.js";

/**
 * @typedef {{kind: string, hash: string, mean: any, l2: any, nan: number|null, inf: number|null}} Tensor
 * @typedef {{duration_ns: string|null, self_ns: string|null, tensors: Record<string, Tensor>}} Side
 */

/** Digits that are shown, and those where both sides would look the same. */
const DIGITS = [4, 9];

/**
 * Returns rows of a label and both sides' texts; a row without texts is a heading.
 * @param {Side} base @param {Side} run
 * @returns {[string, string, string][]}
 */
function valueRows(base, run) {
  const length = (ns) => (ns === null ? "unfinished" : duration(Number(ns), 4));
  const rows = [["duration", length(base.duration_ns), length(run.duration_ns)]];
  if (base.self_ns !== null && run.self_ns !== null) rows.push(["self", length(base.self_ns), length(run.self_ns)]);
  for (const position of Object.keys(run.tensors)) {
    const [was, now] = [base.tensors[position], run.tensors[position]];
    if (was) rows.push(...tensorRows(position, was, now));
  }
  return rows;
}

function tensorRows(position, was, now) {
  if (was.kind !== now.kind) return [[position, was.kind, now.kind]];
  const same = was.hash === now.hash;
  const rows = [[`${position}, ${now.kind}: ${same ? "bitwise identical" : "not bitwise identical"}`, "", ""]];
  rows.push(["mean", ...both(was.mean, now.mean)], ["L2 norm", ...both(was.l2, now.l2)]);
  for (const [name, label] of [
    ["nan", "NaN"],
    ["inf", "infinite"],
  ])
    if (was[name] || now[name]) rows.push([label, count(was[name] ?? 0), count(now[name] ?? 0)]);
  return rows;
}

/** Returns both numbers with so many digits that they differ if they do. */
function both(was, now) {
  const texts = DIGITS.map((digits) => [was, now].map((value) => text(value, digits)));
  return was !== now && texts[0][0] === texts[0][1] ? texts[1] : texts[0];
}

const text = (value, digits) => (value === null ? "no finite element" : number(Number(value), digits));

/**
 * Returns a table of the values of both sides.
 * @param {Side} base @param {Side} run
 */
export function valueTable(base, run) {
  const table = element("table", "", "beside");
  const head = element("tr", "");
  head.append(element("td", ""), ...["base", "run"].map((name) => columnHead(name)));
  table.append(head);
  for (const [label, was, now] of valueRows(base, run)) {
    const row = element("tr", "");
    const title = element("th", label);
    title.scope = "row";
    row.append(title);
    if (was || now) row.append(element("td", was), element("td", now));
    else title.colSpan = 3;
    table.append(row);
  }
  return table;
}

function columnHead(name) {
  const cell = element("th", name);
  cell.scope = "col";
  return cell;
}
