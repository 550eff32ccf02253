// What all parts of the operations page use: elements, figures as text, requests, state of the page.
// Everything that comes from the cluster goes in as text nodes, never as markup.
"use strict";

const TIMEOUT_MS = 8000;
// What is known: the last overview, the session, and what the reader has chosen.
const page = { view: null, session: null, opened: new Set(), find: "", offset: 0 };

const STATES = {
  "ready": ["good", "●", "ready"],
  "not-ready": ["warn", "▲", "not ready"],
  "unreachable": ["bad", "✕", "unreachable"],
  "lapsed": ["bad", "◌", "lease lapsed"],
  "unknown": ["warn", "…", "not asked yet"],
};

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity));
  return element;
}

const byId = (id) => document.getElementById(id);
const address = (host, port) => (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`);
const several = (n, one, more) => `${count(n)} ${n === 1 ? one : more || one + "s"}`;
const empty = (text) => h("p", { class: "empty" }, text);

// Replaces what is in an element. The control that has the focus keeps it, and boxes keep how far they are scrolled, by their data-key.
function put(id, ...content) {
  const place = byId(id);
  const keyed = () => [...place.querySelectorAll("[data-key]")];
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = keyed().filter((one) => one.scrollLeft || one.scrollTop).map((one) => [one.dataset.key, one.scrollLeft, one.scrollTop]);
  place.replaceChildren(...content.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (focused === undefined && !scrolled.length) return;
  const again = keyed();
  const named = (key) => again.find((one) => one.dataset.key === key);
  // The reader may have scrolled away from the control.
  if (focused !== undefined && named(focused)) named(focused).focus({ preventScroll: true });
  for (const [key, left, top] of scrolled) if (named(key)) Object.assign(named(key), { scrollLeft: left, scrollTop: top });
}

/** A box that scrolls by itself where its content is wider than the page. */
const scroller = (name, content) => h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name, "data-key": "scroll/" + name }, content);

function count(n) {
  if (n === null || n === undefined) return "–";
  if (Math.abs(n) < 10000) return Number.isInteger(n) ? String(n) : n.toFixed(n < 10 ? 1 : 0);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(n) >= size) return (n / size).toFixed(1) + " " + unit;
  }
  return String(n);
}

function bytes(n) {
  if (n < 1024) return Math.round(n) + " B";
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = -1;
  do { n /= 1024; at += 1; } while (n >= 1024 && at + 1 < units.length);
  return n.toFixed(1) + " " + units[at];
}

function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}

function mark(kind, sign, text, title) {
  return h("span", { class: "mark " + kind, title }, h("span", { "aria-hidden": "true" }, sign + " "), text);
}

function table(caption, heads, rows) {
  // A column without a title has one for those who do not see it.
  const title = (text) => (text ? text : h("span", { class: "unseen" }, "Course"));
  const head = heads.map(([text, kind]) => h("th", { scope: "col", class: kind || null }, title(text)));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td", { class: heads[at][1] || null }, cell))));
  return h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

function missing(list) {
  return (list || []).map((u) => h("p", { class: "small mark warn" }, `▲ ${u.node} did not answer: ${u.error}`));
}

const KEPT_MAX = 16384;

/** Keeps a value by its key: at most KEPT_MAX, those that were set last. */
function keep(map, key, value) {
  map.delete(key);
  map.set(key, value);
  if (map.size > KEPT_MAX) map.delete(map.keys().next().value);
}

const rates = new Map();

// Growth of a counter per second since the overview before; null at the first one, and where it fell: then it was started anew.
function perSecond(key, at, total) {
  const before = rates.get(key);
  if (!before || at > before.at) {
    const grown = before && total >= before.total;
    keep(rates, key, { at, total, rate: grown ? 1000 * (total - before.total) / (at - before.at) : null });
  }
  return rates.get(key).rate;
}

const each = (rate, draw) => (rate === null ? "–" : draw(rate) + "/s");

/** How much of a bound is used: a state only beyond four fifths of it, then in words as well. */
function bar(part, whole, full) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  const fill = h("i", {});
  fill.style.width = (100 * share).toFixed(1) + "%";
  const near = full && share > 0.8;
  return h("span", {}, h("span", { class: near ? "bar bad" : "bar", "aria-hidden": "true" }, fill),
    near ? mark("bad", "✕", full) : null);
}

/** A button whose meaning stands in its data: one listener on the document acts. */
function button(act, text, data, name) {
  const attributes = { type: "button", "data-act": act, "aria-label": name || null, "data-key": act + "/" + Object.values(data || {}).join("/") };
  for (const [key, value] of Object.entries(data || {})) attributes["data-" + key] = value;
  return h("button", attributes, text);
}

/** A button that shows and hides more of something. */
function opener(key, text) {
  const open = page.opened.has(key);
  return h("button", { class: "open", type: "button", "data-act": "open", "data-of": key, "data-key": "open/" + key, "aria-expanded": String(open) }, text);
}

const operates = () => page.session !== null && ["operator", "admin"].includes(page.session.role);

// The age that an answer may have: pages share what the management node has asked for.
async function ask(path, timeout) {
  const response = await fetch(path, { signal: AbortSignal.timeout(timeout || TIMEOUT_MS), cache: "no-store", headers: { "cache-control": "max-age=1" } });
  if (!response.ok) throw Object.assign(new Error("status " + response.status), { status: response.status });
  return response.json();
}

/** Calls `work` again and again, `ms` after it has ended; not while nobody looks. */
async function every(ms, work) {
  for (;;) {
    try {
      if (!document.hidden) await work();
    } catch (error) {
      // The pulse of the page says whether there is an answer; what was last known stays.
    }
    await new Promise((resume) => setTimeout(resume, ms));
  }
}
