// Figures of the last hour: a small line beside a name, and charts of everything that is kept of a service or node.
"use strict";

const CHART = { width: 320, height: 88 };
const SPARK = { width: 72, height: 18, points: 30 };
const series = new Map(); // by object
const POINTS = 360; // of an hour
let interval_ms = 10000;

const FIGURES = {
  connections_per_s: "New connections a second", packets_per_s: "Packets a second", open_connections: "Open connections",
  waiting_connections: "Connections that wait for a process", accept_credit: "Connections that processes have room for",
  members_down: "Members that get no connections", errors_percent: "Connections that ended with an error, percent",
  first_byte_ms: "Mean time to the server's first byte, ms", flows: "Flows", flow_table_percent: "Flow table in use, percent",
  packets_in_per_s: "Packets from clients a second", bytes_in_per_s: "Bytes from clients a second", bytes_out_per_s: "Bytes to clients a second",
  processes: "Processes", accepts_per_s: "Accepted connections a second", read_bytes_per_s: "Bytes read by programs a second",
  written_bytes_per_s: "Bytes written by programs a second", window_memory_bytes: "Memory granted for windows",
  backlog_connections: "Connections in the backlog", waits_for_credit_per_s: "Waits for credit of the SAN a second",
  retransmits_per_s: "Segments sent again a second", resets_per_s: "Resets sent a second", drops_per_s: "Drops a second",
};
// RED of a service, USE of a node: which figures say what.
const GROUPS = [
  ["Rate", ["connections_per_s", "packets_per_s", "packets_in_per_s", "accepts_per_s", "bytes_in_per_s", "bytes_out_per_s", "read_bytes_per_s", "written_bytes_per_s"]],
  ["Errors and times", ["errors_percent", "first_byte_ms"]],
  ["In use", ["open_connections", "flows", "flow_table_percent", "processes", "window_memory_bytes"]],
  ["Waiting and room", ["waiting_connections", "accept_credit", "backlog_connections", "waits_for_credit_per_s"]],
  ["Errors", ["members_down", "retransmits_per_s", "resets_per_s", "drops_per_s"]],
];

const known = (values) => values.filter((v) => v !== null);
const measure = (name, v) => (/bytes/.test(name) ? bytes(v) : count(v)) + (/per_s$/.test(name) ? "/s" : /percent$/.test(name) ? " %" : "");

/** Lines through values, of which the last stands at the right end; a gap where none was read. */
function lines(values, width, height, top, points) {
  const parts = [];
  let part = [];
  const x = (at) => (width * (points - values.length + at + 1) / points).toFixed(1);
  const y = (v) => (height - 1.5 - (height - 4) * v / top).toFixed(1);
  values.forEach((v, at) => {
    if (v === null) { if (part.length) parts.push(part); part = []; } else part.push(`${x(at)},${y(v)}`);
  });
  if (part.length) parts.push(part);
  // A single value is a short stroke.
  return parts.map((one) => shape("polyline", { points: (one.length > 1 ? one : [one[0], one[0].replace(/^[^,]+/, (v) => (Number(v) - 1).toFixed(1))]).join(" ") }));
}

function figureOf(object, name) {
  const found = series.get(object);
  return found ? found.figures.find((f) => f.name === name) : undefined;
}

/** The last minutes of one figure, beside its name. */
function spark(object, name) {
  const values = (figureOf(object, name) || { values: [] }).values.slice(-SPARK.points);
  if (known(values).length < 2) return null;
  const top = Math.max(...known(values), 1e-9);
  const last = values[values.length - 1];
  const words = `${FIGURES[name]}, last five minutes: ${last === null ? "none" : measure(name, last)} now, at most ${measure(name, top)}`;
  return shape("svg", { width: SPARK.width, height: SPARK.height, class: "spark", role: "img", "aria-label": words },
    lines(values, SPARK.width, SPARK.height, top, SPARK.points));
}

/** How many values are shown: five minutes, a quarter of an hour, or the hour, by what there is. */
function pointsOf(found) {
  const most = Math.max(...found.figures.map((f) => f.values.length - f.values.findIndex((v) => v !== null)));
  return [30, 90, POINTS].find((points) => most <= points) || POINTS;
}

function chart(group, name, values, points) {
  const shown = values.slice(-points);
  const top = Math.max(...known(shown), 0);
  const last = shown[shown.length - 1];
  const words = known(shown).length ? `${last === null ? "not read" : measure(name, last)} now, at most ${measure(name, top)}` : "nothing was read yet";
  const time = span(interval_ms * points);
  const grid = [0.5, CHART.height - 1.5].map((y) => shape("line", { x1: 0, x2: CHART.width, y1: y, y2: y, class: "grid" }));
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "kind" }, group), h("strong", {}, FIGURES[name] || name), h("div", { class: "quiet" }, words)),
    shape("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none", class: "plot", role: "img", "aria-label": `${FIGURES[name] || name} in the last ${time}: ${words}` },
      grid, lines(shown, CHART.width, CHART.height, Math.max(top, 1e-9), points)),
    h("div", { class: "axis small quiet", "aria-hidden": "true" }, h("span", {}, time + " ago"), h("span", {}, "now")));
}

/** All figures of an object. */
function charts(object) {
  const found = series.get(object);
  if (!found || !found.figures.length) return empty("Figures are read every ten seconds; there are none yet.");
  const points = pointsOf(found);
  const of = ([group, names]) => names.map((name) => found.figures.find((f) => f.name === name)).filter((f) => f).map((f) => chart(group, f.name, f.values, points));
  return h("div", { class: "charts" }, GROUPS.flatMap(of));
}

async function refreshSeries() {
  if (page.view === null) return;
  const shown = [...page.view.services.services.map((s) => "service/" + s.name), ...page.view.cluster.nodes.map((n) => "node/" + n.id)];
  const opened = shown.filter((object) => page.opened.has(object));
  const brief = shown.filter((object) => !page.opened.has(object));
  const read = async (objects, points) => {
    if (!objects.length) return;
    const asked = objects.slice(0, 64);
    const view = await ask(`api/v1/series?points=${points}&object=` + asked.map(encodeURIComponent).join(","));
    interval_ms = view.interval_ms;
    // Of what is not in the answer there are no figures any longer.
    for (const object of asked) series.delete(object);
    for (const found of view.objects) series.set(found.object, found);
  };
  await Promise.allSettled([read(opened, POINTS), read(brief, SPARK.points)]);
  const here = new Set(shown);
  for (const object of [...series.keys()]) if (!here.has(object)) series.delete(object);
  draw(page.view);
}

every(5000, refreshSeries);
