// The operations page: reads /api/v1/overview every two seconds and draws it.
// Everything that comes from the cluster goes in as text nodes, never as markup.
"use strict";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 8000;
const HISTORY = 45;

const ROLES = {
  "network-node": { title: "Network nodes", what: "take packets from the LAN" },
  "proxy-node": { title: "Proxy nodes", what: "end the clients' TCP" },
  "app-node": { title: "Application nodes", what: "run unmodified servers" },
};
const STATES = {
  "ready": ["good", "●", "ready"],
  "not-ready": ["warn", "▲", "not ready"],
  "unreachable": ["bad", "✕", "unreachable"],
  "lapsed": ["bad", "◌", "lease lapsed"],
  "unknown": ["warn", "…", "not asked yet"],
};
const history = new Map();
const rates = new Map();
let chosen = null; // the channel whose peers are shown

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);
const put = (id, ...content) => byId(id).replaceChildren(...content.flat(Infinity));
const address = (host, port) => (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`);
const empty = (text) => h("p", { class: "empty" }, text);

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

function state(node) {
  const [kind, sign, text] = STATES[node.state] || ["warn", "?", node.state];
  return mark(kind, sign, text, node.detail || null);
}

function table(caption, heads, rows) {
  const head = heads.map(([text, kind]) => h("th", { scope: "col", class: kind || null }, text));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td", { class: heads[at][1] || null }, cell))));
  return h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

function missing(list) {
  return (list || []).map((u) => h("p", { class: "small mark warn" }, `▲ ${u.node} did not answer: ${u.error}`));
}

function spark(key, value) {
  const values = history.get(key) || [];
  values.push(value);
  if (values.length > HISTORY) values.shift();
  history.set(key, values);
  if (values.length < 3) return null;
  const top = Math.max(...values, 1e-9);
  const points = values.map((v, x) => `${(x * 40 / (HISTORY - 1)).toFixed(1)},${(13 - 12 * v / top).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  for (const [name, v] of [["width", 40], ["height", 14], ["aria-hidden", "true"]]) svg.setAttribute(name, v);
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

// Growth of a counter per second since the overview before; null at the first one, and where it fell: then it was started anew.
function perSecond(key, at, total) {
  const before = rates.get(key);
  if (!before || at > before.at) {
    const grown = before && total >= before.total;
    rates.set(key, { at, total, rate: grown ? 1000 * (total - before.total) / (at - before.at) : null });
  }
  return rates.get(key).rate;
}

const each = (rate, draw) => (rate === null ? "–" : draw(rate) + "/s");

function bar(part, whole) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  const fill = h("i", {});
  fill.style.width = (100 * share).toFixed(1) + "%";
  return h("span", { class: share > 0.8 ? "bar bad" : "bar", "aria-hidden": "true" }, fill);
}

function figure(role, f) {
  const rate = f.per_second !== null && f.per_second !== undefined;
  const size = /bytes/i.test(f.name);
  const text = rate ? (size ? bytes(f.per_second) : count(f.per_second)) + "/s" : (size ? bytes(f.value) : count(f.value));
  const total = rate ? `${size ? bytes(f.value) : count(f.value)} in all` : null;
  const line = spark(role + "/" + f.name, rate ? f.per_second : f.value);
  return [h("dt", { title: f.name }, f.name), h("dd", { class: "spark" }, line), h("dd", { title: total }, text)];
}

function drawPath(view) {
  const tiers = new Map(view.tiers.map((tier) => [tier.role, tier]));
  const way = (above, below, kind) =>
    h("div", { class: "way " + (kind || "") }, h("span", {}, above), h("span", { class: "line", "aria-hidden": "true" }), h("span", {}, below));
  const stop = (role) => {
    const tier = tiers.get(role) || { nodes: 0, ready: 0, figures: [] };
    const kind = tier.nodes === 0 || tier.ready === 0 ? "bad" : tier.ready < tier.nodes ? "warn" : "good";
    const sign = { good: "●", warn: "▲", bad: "✕" }[kind];
    const text = tier.nodes === 0 ? "none registered" : `${tier.ready} of ${tier.nodes} ready`;
    return h("div", { class: "stop" },
      h("h3", {}, ROLES[role].title),
      h("p", { class: "small quiet" }, ROLES[role].what),
      h("p", { class: "state" }, mark(kind, sign, text)),
      h("dl", { class: "figures" }, tier.figures.map((f) => figure(role, f))));
  };
  put("path",
    h("div", { class: "stop outside" }, h("h3", {}, "Clients"), h("p", { class: "small quiet" }, "plain TCP/IP")),
    way("LAN", "packets"), stop("network-node"),
    way("SAN", "labelled segments", "tunnel"), stop("proxy-node"),
    way("SAN", "OPEN DATA CLOSE"), stop("app-node"));
}

function drawPolicy(view) {
  const chips = (generation) => h("ul", { class: "chips", "aria-label": "acknowledgements" }, generation.acks.map((ack) => {
    const [kind, sign] = { active: ["good", "✓"], staged: ["warn", "…"], refused: ["bad", "✕"] }[ack.state] || ["", "…"];
    return h("li", { class: kind, title: ack.error || null }, `${sign} ${ack.node} ${ack.state}`);
  }));
  const content = [];
  if (view.active) {
    const g = view.active;
    content.push(h("p", { class: "generation" }, h("strong", {}, "Generation " + g.generation),
      h("span", { class: "quiet" }, `${g.phase}, written ${span(view.now_unix_ms - g.created_unix_ms)} ago`)));
    content.push(h("p", { class: "small quiet" }, "sha256 ", h("code", {}, g.hash.slice(0, 16) + "…")), chips(g));
  } else {
    content.push(empty("No policy is active. Publish one: cspctl policy apply FILE"));
  }
  if (view.latest) {
    const g = view.latest;
    const over = !["staging", "activating"].includes(g.phase);
    content.push(h("div", { class: "pending" },
      h("p", {}, mark(over ? "bad" : "warn", over ? "✕" : "…", `Generation ${g.generation}: ${g.phase}`)),
      g.reason ? h("p", { class: "small" }, g.reason) : null, chips(g)));
  }
  put("policy", content);
}

/** Where a pool member is: the names that may stand for an address follow it. */
function server(m) {
  const names = (m.names || []).join(", ");
  return address(m.address || m.node || names, m.port) + (m.address && names ? ` (${names})` : "");
}

/** What a pool member can do: whether proxies reach a plain server, or how many processes listen. */
function serverState(m) {
  const down = m.down_at || [];
  if (m.address && m.connections_total === null) return "";
  if (m.address) return down.length ? mark("bad", "✕", "down", down.join(", ")) : mark("good", "✓", "up");
  if ((m.names || []).length) return mark("bad", "✕", "no address", "no proxy has an address for the name");
  if (m.processes === 0) return mark("bad", "✕", "no process", "no process is listening");
  return m.processes === null ? "" : `${m.processes} process${m.processes === 1 ? "" : "es"}`;
}

function drawServices(view) {
  const { services, unreachable } = view.services;
  const share = (m) => h("span", {}, bar(m.open_connections || 0, most));
  const most = Math.max(1, ...services.flatMap((s) => s.pool.map((m) => m.open_connections || 0)));
  const draw = (s) => h("div", { class: "service" },
    h("h3", {}, s.name, h("code", {}, address(s.vip, s.port) + (s.protocol === "udp" ? " udp" : "")),
      s.via === "network" ? h("span", { class: "small" }, "packets are forwarded") : null,
      s.pending ? mark("warn", "▲", `${s.pending} waiting for a process`) : null),
    table("Pool of " + s.name, [["Pool member"], ["State"], ["Open", "number"], ["Total", "number"], [""]],
      s.pool.map((m) => [
        h("code", {}, server(m)), serverState(m),
        count(m.open_connections), count(m.connections_total), share(m)])));
  put("services", services.length ? services.map(draw) : empty(view.services.generation ? "The active policy names no service." : "No policy is active yet."), missing(unreachable));
}

function drawChannels(view) {
  const { channels, unreachable } = view.channels;
  byId("channels-section").hidden = !channels.length;
  if (!channels.some((c) => c.name === chosen)) showPeers(null);
  const focused = document.activeElement && document.activeElement.dataset.channel;
  const row = (c) => {
    const grown = (what, total) => perSecond(`${c.name} ${what}`, view.now_unix_ms, total);
    const open = h("button", { class: "open", type: "button", "data-channel": c.name, "aria-expanded": String(c.name === chosen),
      "aria-controls": "peers" }, c.name);
    open.addEventListener("click", () => showPeers(c.name === chosen ? null : c.name));
    const lost = c.dropped_total + c.lost_total;
    const losing = grown("dropped", lost);
    const rows = Object.entries(c.lost_rows || {}).filter(([, total]) => total);
    const lostRows = rows.reduce((sum, [, total]) => sum + total, 0);
    const losingRows = grown("lost rows", lostRows);
    const why = rows.map(([reason, total]) => `${count(total)} ${reason.replace("_total", "").replace("_", " ")}`).join(", ");
    const holding = grown("held", c.held_total);
    return [
      h("div", {}, open, h("div", { class: "small quiet" }, h("code", {}, address(c.vip, c.port)), " " + c.pattern)),
      c.owners.length ? c.owners.join(" ") : "–",
      count(c.senders), count(c.receivers), count(c.subscriptions),
      h("span", { title: `${count(c.messages_total)} in all` }, each(grown("messages", c.messages_total), count)),
      h("span", { title: `${bytes(c.bytes_total)} in all` }, each(grown("bytes", c.bytes_total), bytes)),
      h("span", { title: `${count(c.delivered_total)} in all` }, each(grown("delivered", c.delivered_total), count)),
      losing ? mark("warn", "▲", `${count(losing)}/s`, `${count(lost)} in all`) : count(lost),
      losingRows ? mark("warn", "▲", `${count(losingRows)}/s`, why) : h("span", { title: why }, count(lostRows)),
      holding ? mark("warn", "▲", `${count(holding)}/s`, `${count(c.held_total)} in all`) : count(c.held_total),
      count(c.waiting),
      h("span", { class: "memory" }, `${bytes(c.memory_bytes)} of ${bytes(c.memory_max_bytes)}`,
        bar(c.memory_bytes, c.memory_max_bytes)),
    ];
  };
  put("channels", table("Channels of messages", [["Channel", "nowrap"], ["Owner", "nowrap"], ["Senders", "number"], ["Receivers", "number"],
    ["Topics", "number"], ["Messages", "number"], ["Bytes", "number"], ["Delivered", "number"], ["Dropped", "number"],
    ["Lost rows", "number"], ["Held back", "number"], ["Waiting", "number"], ["Memory"]], channels.map(row)), missing(unreachable));
  for (const open of byId("channels").querySelectorAll("button")) {
    if (open.dataset.channel === focused) open.focus();
  }
}

function showPeers(channel) {
  chosen = channel;
  for (const open of byId("channels").querySelectorAll("button")) {
    open.setAttribute("aria-expanded", String(open.dataset.channel === chosen));
  }
  if (chosen === null) return put("peers");
  return refreshPeers();
}

async function refreshPeers() {
  const asked = chosen;
  if (asked === null) return;
  const path = "api/v1/subscriptions?limit=50&channel=" + encodeURIComponent(asked);
  try {
    const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    if (response.ok && asked === chosen) drawPeers(await response.json());
  } catch (error) {
    // The pulse says that there is no answer; the peers last known stay.
  }
}

function drawPeers(view) {
  const { peers, more, unreachable } = view;
  const who = (p) => (p.process ? `${p.node} ${p.process}` : p.address || "–");
  const topics = (p) => {
    const left = p.subscriptions - p.prefixes.length;
    const known = p.prefixes.map((prefix) => h("code", {}, prefix === "" ? "(all)" : prefix));
    return h("div", { class: "topics" }, known, left > 0 ? h("span", { class: "quiet" }, `${left} more`) : null);
  };
  const rows = peers.map((p) => [
    h("code", {}, who(p)), p.socket, `${p.proxy}/${p.worker}`, span(p.age_ms), count(p.messages_in), count(p.messages_out),
    count(p.waiting), p.dropped ? mark("warn", "▲", count(p.dropped)) : "0", topics(p)]);
  put("peers", h("h3", {}, "Peers of " + chosen), rows.length
    ? table("Peers of " + chosen, [["Peer", "nowrap"], ["Socket"], ["Worker", "nowrap"], ["Since", "number"], ["Sent", "number"],
      ["Got", "number"], ["Waiting", "number"], ["Dropped", "number"], ["Topics"]], rows)
    : empty("No program is connected to it."),
    more ? h("p", { class: "small quiet" }, `${more} more: cspctl subscriptions ${chosen} --limit 1000`) : [], missing(unreachable));
}

// The generation that a node works by, and the one that it looked at last if that is another.
function policyOf(n) {
  if (!n.policy_generation) return "–";
  if (!n.policy_state || n.policy_state === "active") return String(n.policy_generation);
  const last = `${n.policy_generation} ${n.policy_state}`;
  return n.policy_active ? `${n.policy_active} (${last})` : last;
}

function drawNodes(view) {
  const rows = view.cluster.nodes.map((n) => [
    h("span", {}, h("strong", {}, n.id), n.leader ? h("span", { class: "quiet" }, " leader") : null),
    n.role,
    h("div", {}, state(n), n.detail ? h("div", { class: "small quiet" }, n.detail) : null),
    policyOf(n),
    String(n.workers),
    n.san.length ? h("code", {}, n.san.join(" ")) : "–",
    h("a", { href: n.admin + "/metrics", rel: "noreferrer" }, n.admin.replace(/^https?:\/\//, "")),
    n.started_unix_ms ? span(view.now_unix_ms - n.started_unix_ms) : "–",
  ]);
  put("nodes", rows.length
    ? table("Nodes of the cluster", [["Node", "nowrap"], ["Role", "nowrap"], ["State"], ["Policy", "number"], ["Workers", "number"],
      ["SAN"], ["Admin", "nowrap"], ["Up", "number"]], rows)
    : empty("No node is registered."));
}

function drawFlows(view) {
  const { flows, truncated, unreachable } = view.flows;
  const rows = flows.map((f) => [
    h("code", {}, f.label), h("code", {}, f.client), f.service || f.server, f.member || "–", f.state || "–",
    ...(f.state.includes("/local") ? ["–", "–"] : [bytes(f.bytes_in), bytes(f.bytes_out)]), span(f.age_ms)]);
  put("flows", rows.length
    ? table("Flows with the most bytes", [["Label"], ["Client", "nowrap"], ["Service"], ["Member", "nowrap"], ["State"],
      ["In", "number"], ["Out", "number"], ["Age", "number"]], rows)
    : empty("No open flows."),
    truncated ? h("p", { class: "small quiet" }, "More are open: cspctl flows --limit 1000") : [], missing(unreachable));
}

function drawDrops(view) {
  const seen = view.drops.filter((d) => d.total > 0).slice(0, 12);
  put("drops", seen.length
    ? table("Dropped packets and messages", [["Reason"], ["Node", "nowrap"], ["Last min", "number"], ["Total", "number"]],
      seen.map((d) => [d.reason.replaceAll("_", " "), d.node,
        d.recent ? mark("warn", "▲", count(d.recent)) : "0", count(d.total)]))
    : empty("Nothing was dropped."));
}

function drawTop(view) {
  byId("identity").textContent = `${view.node} · release ${view.version}`;
  const { etcd, leader, nodes } = view.cluster;
  const banners = [];
  const banner = (kind, text) => banners.push(h("p", { class: "banner " + kind }, text));
  if (!etcd.connected) {
    banner("bad", `etcd has been silent for ${span(etcd.silent_ms)}. The cluster serves on; what is shown of members and policy is the state last known.`);
  } else if (!leader) {
    banner("warn", "No management node leads at this time; policies cannot be changed.");
  }
  const away = nodes.filter((n) => n.state === "unreachable" || n.state === "lapsed").map((n) => n.id);
  if (away.length) banner("warn", `Not answering: ${away.join(", ")}`);
  // A live region is only changed when its text changes, or screen readers repeat it every two seconds.
  if (byId("banner").textContent !== banners.map((b) => b.textContent).join("")) put("banner", banners);
}

function pulse(kind, text) {
  byId("pulse").className = "pulse " + kind;
  byId("pulse-text").textContent = text;
}

async function refresh() {
  if (document.hidden) return;
  try {
    const response = await fetch("api/v1/overview", { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    if (response.status === 401) {
      put("banner", h("p", { class: "banner warn" }, "You are not logged in. Run cspctl login and open the link that it prints."));
      return pulse("lost", "not logged in");
    }
    if (!response.ok) throw new Error("status " + response.status);
    const view = await response.json();
    for (const draw of [drawTop, drawPath, drawPolicy, drawServices, drawChannels, drawNodes, drawFlows, drawDrops]) draw(view);
    refreshPeers();
    pulse("live", "live · " + new Date(view.now_unix_ms).toLocaleTimeString());
  } catch (error) {
    pulse("lost", "no answer from the management node");
  }
}

(async function loop() {
  for (;;) {
    await refresh();
    await new Promise((resume) => setTimeout(resume, INTERVAL_MS));
  }
})();
document.addEventListener("visibilitychange", refresh);
