// The parts of the operations page about VIP groups, information flows, handlers of messages and packet plug-ins. What a cluster does not use is not
// shown. Its helpers are those of base.js.
"use strict";

const HISTORY = 45;
const PLOT = { width: 150, height: 30 };
const courses = new Map();

// The last values of something as a line. `mark` is a value to draw across, such as a promise.
function plot(key, value, mark, what) {
  const values = courses.get(key) || [];
  values.push(value);
  if (values.length > HISTORY) values.shift();
  keep(courses, key, values);
  const top = Math.max(...values, mark || 0, 1e-9);
  const y = (v) => (PLOT.height - 1 - (PLOT.height - 3) * v / top).toFixed(1);
  const x = (at) => (PLOT.width * (at + HISTORY - values.length) / (HISTORY - 1)).toFixed(1);
  const shape = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [attribute, v] of Object.entries(attributes)) element.setAttribute(attribute, v);
    return element;
  };
  const svg = shape("svg", { width: PLOT.width, height: PLOT.height, class: "plot", role: "img", "aria-label": what });
  if (mark) svg.append(shape("line", { x1: 0, x2: PLOT.width, y1: y(mark), y2: y(mark), class: "promise" }));
  svg.append(shape("polyline", { points: values.map((v, at) => `${x(at)},${y(v)}`).join(" ") }));
  return svg;
}

const mbps = (rate) => (rate === null ? "–" : (8 * rate / 1e6).toFixed(1));
const micros = (ns) => (ns < 1e6 ? (ns / 1e3).toFixed(1) + " µs" : (ns / 1e6).toFixed(1) + " ms");

// Adds up what the workers and nodes say of the same thing.
function together(items, keyOf, fields) {
  const sums = new Map();
  for (const item of items) {
    const sum = sums.get(keyOf(item));
    if (!sum) sums.set(keyOf(item), { ...item });
    else for (const field of fields) sum[field] += item[field];
  }
  return [...sums.values()];
}

function drawQuality(view, now) {
  const links = view.nodes.filter((n) => n.links.length);
  byId("quality-section").hidden = !links.length;
  if (!links.length) return;
  const now_in_force = links[0].links[0].scheme;
  if (byId("scheme").dataset.now !== now_in_force) {
    byId("scheme").dataset.now = now_in_force;
    byId("scheme").value = now_in_force;
  }
  const content = [];
  for (const node of links) {
    const { scheme, capacity_bits_per_s, waits } = node.links[0];
    content.push(h("h3", {}, node.node, h("span", { class: "quiet" }, ` ${scheme} over ${capacity_bits_per_s / 1e6} Mb/s${["RR", "EAS", "PA"].includes(scheme) ? ", looks at no promise" : ""}`),
      waits ? mark("warn", "▲", "a new policy waits for messages of former flows") : null));
    const sums = together(node.flows, (f) => f.name, ["queued_messages", "offered_bytes_total", "released_total",
      "released_bytes_total", "dropped_total", "filtered_total", "held_total", "delay_ns_total"]);
    const row = (f) => {
      const key = `${node.node} ${f.name}`;
      const arriving = perSecond(key + " in", now, f.offered_bytes_total);
      const leaving = perSecond(key + " out", now, f.released_bytes_total);
      const released = perSecond(key + " items", now, f.released_total);
      const delayed = perSecond(key + " delay", now, f.delay_ns_total);
      const delay = released ? delayed / released : 0;
      const lost = perSecond(key + " lost", now, f.dropped_total + f.filtered_total);
      const promise = f.promised_bits_per_s / 8;
      return [
        h("div", {}, h("strong", {}, f.name), h("div", { class: "small quiet" }, `priority ${f.priority}`)),
        f.promised_bits_per_s ? (f.promised_bits_per_s / 1e6).toFixed(1) + (f.promised_messages_per_s ? ` (${count(f.promised_messages_per_s)}/s)` : "") : "–", mbps(arriving), mbps(leaving),
        plot(key + " out", leaving || 0, promise, `Mb/s of ${f.name} that left, the promise across`),
        count(f.queued_messages), plot(key + " queue", f.queued_messages, 0, `messages of ${f.name} that waited`),
        micros(delay), plot(key + " delay", delay, 0, `mean delay of ${f.name}`),
        lost ? mark("warn", "▲", `${count(lost)}/s`, `${count(f.dropped_total)} dropped, ${count(f.filtered_total)} filtered in all`)
          : count(f.dropped_total + f.filtered_total),
        count(f.held_total)];
    };
    content.push(table("Information flows at " + node.node, [["Flow", "nowrap"], ["Promised Mb/s", "number"], ["In", "number"], ["Out", "number"],
      [""], ["Waiting", "number"], [""], ["Delay", "number"], [""], ["Dropped", "number"], ["Held", "number"]], sums.map(row)));
  }
  put("quality", content, missing(view.unreachable));
}

function drawHandlers(contexts, handlers) {
  const stages = contexts.nodes.flatMap((n) => n.stages.map((s) => ({ ...s, node: n.node })));
  const supplied = handlers.nodes.flatMap((n) => n.stages.map((s) => ({ ...s, node: n.node })));
  byId("handlers-section").hidden = !stages.length;
  if (!stages.length) return;
  const row = (s) => {
    const own = supplied.find((m) => m.node === s.node && m.channel === s.channel && m.handler === s.handler);
    const stopped = s.stops_total ? mark("warn", "▲", count(s.stops_total), own && own.stops.map((x) => `${x.reason}: ${x.total}`).join(", ")) : "0";
    const odd = own && own.state !== "running" ? own.state : s.state;
    return [
      h("div", {}, s.channel, s.format === null ? null : h("span", { class: "quiet" }, ` format ${s.format}`)),
      h("div", {}, h("strong", {}, s.handler), own ? h("div", { class: "small quiet" }, h("code", {}, own.module.slice(0, 12) + "…")) : null),
      h("span", {}, s.context, h("span", { class: "quiet" }, ` ${s.node}/${s.worker}`)),
      odd === "active" || odd === "running" ? mark("good", "●", odd) : mark("warn", "▲", odd),
      count(s.messages_total), count(s.emitted_total), micros(s.p50_ns), micros(s.p99_ns), count(s.waiting), stopped];
  };
  put("handlers", table("Handlers in the paths of channels", [["Channel", "nowrap"], ["Handler", "nowrap"], ["Context", "nowrap"], ["State"],
    ["Messages", "number"], ["Emitted", "number"], ["p50", "number"], ["p99", "number"], ["Waiting", "number"], ["Stops", "number"]],
    stages.map(row)), missing(contexts.unreachable));
}

function drawVips(view, nodes) {
  byId("vips-section").hidden = !view.groups.length;
  if (!view.groups.length) return;
  const draining = new Set(nodes.filter((n) => n.draining).map((n) => n.id));
  const holder = (g) => {
    if (g.holder === null) return mark("bad", "✕", "nobody", "no network node answers for these addresses");
    if (g.others.length) return mark("bad", "✕", [g.holder, ...g.others].join(" "), "several network nodes answer: a fault of the network");
    return draining.has(g.holder) ? mark("warn", "▲", g.holder, "it drains, and no other one can take the group over") : mark("good", "●", g.holder);
  };
  const candidate = (node) => h("div", {}, node, draining.has(node) ? mark("warn", " ▲", "drains") : null);
  const row = (g) => [
    h("strong", {}, g.name), g.addresses.map((one) => h("div", {}, h("code", {}, one))), holder(g),
    g.held_ms === null ? "–" : span(g.held_ms), `${g.votes} of ${g.voters}`, String(g.epoch), g.nodes.map(candidate)];
  put("vips", table("Groups of virtual addresses and the network nodes that hold them", [["Group", "nowrap"], ["Addresses"],
    ["Held by", "nowrap"], ["Since", "number"], ["Votes", "number"], ["Epoch", "number"], ["Network nodes", "nowrap"]],
    view.groups.map(row)), missing(view.unreachable));
}

function drawPlugins(view, now) {
  const rules = together(view.nodes.flatMap((n) => n.rules), (r) => r.name, ["packets_total", "bytes_total"]);
  const instances = together(view.nodes.flatMap((n) => n.instances), (i) => i.name, ["packets_total", "bytes_total", "dropped_total"]);
  byId("plugins-section").hidden = !instances.length;
  if (!instances.length) return;
  const SHOWN = 50;
  const busiest = [...rules].sort((a, b) => b.packets_total - a.packets_total).slice(0, SHOWN);
  const rule = (r) => {
    const rate = perSecond("rule " + r.name, now, r.packets_total);
    return [h("div", {}, h("strong", {}, r.name), r.covered_by ? mark("warn", "▲", `never matched: ${r.covered_by} covers it`) : null),
      String(r.priority), h("code", {}, r.match || "(all)"), r.plugin,
      each(rate, count), plot("rule " + r.name, rate || 0, 0, `packets a second of ${r.name}`), count(r.packets_total), bytes(r.bytes_total)];
  };
  // The level of an instance can differ from node to node.
  const runsIn = (name) => {
    const own = view.nodes.flatMap((n) => n.instances.filter((i) => i.name === name).map((i) => [n, i]));
    const places = new Map();
    for (const [n, i] of own) {
      const place = `${i.environment} (level ${n.environments.find((e) => e.name === i.environment).level})`;
      places.set(place, [...(places.get(place) || []), n.node]);
    }
    const all = [...places];
    const autos = own.filter(([, i]) => i.auto);
    let rate = 0;
    for (const [, i] of autos) rate += i.auto.packets_per_s || 0;
    const why = autos.map(([n, i]) => `${n.node}: ${i.auto.reason}`).join("; ");
    const held = own.filter(([, i]) => i.held);
    return h("div", {}, all.map(([place, nodes]) => (all.length > 1 ? `${place} at ${nodes.join(", ")}` : place)).join("; "),
      autos.length ? h("div", { class: "small quiet", title: why }, `auto: ${count(rate)} packets/s`) : null,
      held.map(([n, i]) => h("div", { class: "small" }, mark("warn", "▲", own.length > 1 ? `${n.node}: ${i.held}` : i.held))));
  };
  const instance = (i) => {
    const dropping = perSecond("instance " + i.name, now, i.dropped_total);
    return [h("strong", {}, i.name), i.module.length === 64 ? h("code", {}, i.module.slice(0, 12) + "…") : i.module, runsIn(i.name),
      i.settings.map((s) => `${s.name} ${s.value}`).join(", ") || "–",
      i.outputs.map((o) => `${o.output} → ${o.to}`).join(", ") || "out",
      count(i.packets_total), dropping ? mark("warn", "▲", `${count(dropping)}/s`, `${count(i.dropped_total)} in all`) : count(i.dropped_total)];
  };
  put("plugins",
    table("Packet rules", [["Rule", "nowrap"], ["Priority", "number"], ["Matches"], ["Plug-in", "nowrap"], ["Rate", "number"], [""],
      ["Packets", "number"], ["Bytes", "number"]], busiest.map(rule)),
    rules.length > SHOWN ? h("p", { class: "small quiet" }, `${rules.length - SHOWN} more with fewer packets: cspctl rule stats`) : [],
    h("h3", {}, "Plug-ins"),
    table("Packet plug-ins", [["Instance", "nowrap"], ["Module", "nowrap"], ["Runs in"], ["Settings"], ["Outputs"], ["Packets", "number"],
      ["Dropped", "number"]], instances.map(instance)), missing(view.unreachable));
}

async function refreshPlanes() {
  const parts = [
    Promise.all([ask("api/v1/vip-groups"), ask("api/v1/nodes")]).then(([view, cluster]) => drawVips(view, cluster.nodes)),
    ask("api/v1/quality").then((view) => drawQuality(view, Date.now())),
    Promise.all([ask("api/v1/contexts"), ask("api/v1/handlers")]).then(([contexts, handlers]) => drawHandlers(contexts, handlers)),
    ask("api/v1/plugins").then((view) => drawPlugins(view, Date.now())),
  ];
  await Promise.allSettled(parts);
}

byId("scheme-switch").addEventListener("click", () => switchScheme(byId("scheme").value, byId("scheme").dataset.now));

every(INTERVAL_MS, refreshPlanes);
