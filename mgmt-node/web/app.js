// The operations page: reads /api/v1/overview every two seconds and draws tiers, services, nodes, channels, flows.
"use strict";

const INTERVAL_MS = 2000;
const SHOWN = 20;

const ROLES = {
  "network-node": { title: "Network nodes", what: "take packets from the LAN" },
  "proxy-node": { title: "Proxy nodes", what: "end the clients' TCP" },
  "app-node": { title: "Application nodes", what: "run unmodified servers" },
};
let chosen = null; // the channel whose peers are shown

function state(node) {
  const [kind, sign, text] = STATES[node.state] || ["warn", "?", node.state];
  return mark(kind, sign, text, node.detail || null);
}

function figure(f) {
  const rate = f.per_second !== null && f.per_second !== undefined;
  const size = /bytes/i.test(f.name);
  const text = rate ? (size ? bytes(f.per_second) : count(f.per_second)) + "/s" : (size ? bytes(f.value) : count(f.value));
  const total = rate ? `${size ? bytes(f.value) : count(f.value)} in all` : null;
  return [h("dt", { title: f.name }, f.name), h("dd", { title: total }, text)];
}

function drawTiers(view) {
  put("tiers", view.tiers.map((tier) => {
    const kind = tier.nodes === 0 || tier.ready === 0 ? "bad" : tier.ready < tier.nodes ? "warn" : "good";
    const sign = { good: "●", warn: "▲", bad: "✕" }[kind];
    const text = tier.nodes === 0 ? "none registered" : `${tier.ready} of ${tier.nodes} ready`;
    return h("div", { class: "stop" },
      h("h3", {}, ROLES[tier.role].title),
      h("p", { class: "small quiet" }, ROLES[tier.role].what),
      h("p", { class: "state" }, mark(kind, sign, text)),
      h("dl", { class: "figures" }, tier.figures.map(figure)));
  }));
}

function chips(generation) {
  const apart = generation.acks.filter((ack) => ack.state !== "active");
  if (generation.acks.length > 6 && !apart.length) return h("p", { class: "small" }, mark("good", "✓", `active at all ${generation.acks.length} nodes`));
  const shown = generation.acks.length > 6 ? apart : generation.acks;
  return h("ul", { class: "chips", "aria-label": "acknowledgements of generation " + generation.generation }, shown.map((ack) => {
    const [kind, sign] = { active: ["good", "✓"], staged: ["warn", "…"], refused: ["bad", "✕"] }[ack.state] || ["", "…"];
    return h("li", { class: kind, title: ack.error || null }, `${sign} ${ack.node} ${ack.state}`);
  }));
}

function drawPolicy(view) {
  const content = [];
  if (view.active) {
    const g = view.active;
    content.push(h("p", { class: "generation" }, h("strong", {}, "Generation " + g.generation),
      h("span", { class: "quiet" }, `${g.phase}, written ${span(view.now_unix_ms - g.created_unix_ms)} ago`)));
    content.push(h("p", { class: "small quiet" }, "sha256 ", h("code", {}, g.hash.slice(0, 16) + "…")), g.acks.length ? chips(g) : null);
  } else {
    content.push(empty("No policy is active. Publish one: cspctl policy apply FILE"));
  }
  if (view.latest) {
    const g = view.latest;
    const over = !["staging", "activating"].includes(g.phase);
    content.push(h("div", { class: "pending" },
      h("p", {}, mark(over ? "bad" : "warn", over ? "✕" : "…", `Generation ${g.generation}: ${g.phase}`)),
      g.reason ? h("p", { class: "small" }, g.reason) : null, g.acks.length ? chips(g) : null));
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
  if (m.address && m.connections_total === null) return h("span", { class: "quiet" }, "not reported");
  if (m.address && down.length) return h("div", {}, mark("bad", "✕", "down"), down.map((why) => h("div", { class: "small" }, why)));
  if (m.address) return mark("good", "✓", "up");
  if ((m.names || []).length) return h("div", {}, mark("bad", "✕", "no address"), h("div", { class: "small" }, "no proxy has an address for the name"));
  if (m.processes === 0) return h("div", {}, mark("bad", "✕", "no process"), h("div", { class: "small" }, "no process listens; its node has no credit to give"));
  return m.processes === null ? h("span", { class: "quiet" }, "not reported") : mark("good", "✓", `${m.processes} process${m.processes === 1 ? "" : "es"}`);
}

/** The state of a service in one mark: its members, and what waits. */
function serviceState(s) {
  const down = s.pool.filter((m) => (m.down_at || []).length || m.processes === 0 || (!m.address && !m.node)).length;
  if (s.pool.length && down === s.pool.length) return mark("bad", "✕", "no member takes connections");
  if (down) return mark("warn", "▲", `${down} of ${s.pool.length} members down`);
  if (s.pending) return mark("warn", "▲", `${s.pending} waiting for a process`);
  return mark("good", "✓", s.pool.length ? `${s.pool.length} member${s.pool.length === 1 ? "" : "s"}` : (s.leads_to || []).length ? "routes to " + s.leads_to.join(", ") : "no pool");
}

function drawServices(view) {
  const { services, total, troubled, unreachable } = view.services;
  const open = (s) => s.pool.reduce((sum, m) => sum + (m.open_connections || 0), 0);
  const members = (s) => table("Pool of " + s.name, [["Pool member"], ["State"], ["Open", "number"], ["Room", "number"], ["Total", "number"]],
    s.pool.map((m) => [h("code", {}, server(m)), serverState(m), count(m.open_connections), count(m.accept_credit), count(m.connections_total)]));
  const draw = (s) => {
    const key = "service/" + s.name;
    const grown = perSecond(key, view.now_unix_ms, s.pool.reduce((sum, m) => sum + (m.connections_total || 0), 0));
    return h("div", { class: "service" },
      h("div", { class: "line" },
        h("h3", {}, opener(key, s.name)),
        s.vip ? h("code", {}, address(s.vip, s.port) + (s.protocol === "udp" ? " udp" : "")) : h("span", { class: "small quiet" }, "by routes"),
        serviceState(s),
        h("span", { class: "numbers" }, `${each(grown, count)} new, ${count(open(s))} open, ${count(s.pending)} waiting`,
          s.via === "network" ? ", packets are forwarded" : ""),
        spark(key, "connections_per_s")),
      page.opened.has(key) ? h("div", { class: "more" }, scroller("Pool of " + s.name, members(s)), charts(key)) : null);
  };
  const last = Math.min(total, page.offset + services.length);
  const bad = troubled ? mark("warn", "▲", `${troubled} with a member down, or with connections that wait`) : mark("good", "✓", "all members up");
  put("services-count", total ? h("span", {}, total > services.length ? `${page.offset + 1} to ${last} of ${total}. ` : `${total} service${total === 1 ? "" : "s"}. `, bad) : null,
    total > SHOWN || page.offset ? h("span", { class: "pages" }, page.offset ? button("page", "Earlier", { by: -SHOWN }, "Earlier services") : null,
      last < total ? button("page", "Next", { by: SHOWN }, "Next services") : null) : null);
  put("services", services.length ? services.map(draw)
    : empty(page.find ? "No service has this in its name or address." : view.services.generation ? "The active policy names no service." : "No policy is active yet."),
  missing(unreachable));
}

function drawChannels(view) {
  const { channels, unreachable } = view.channels;
  byId("channels-section").hidden = !channels.length;
  if (!channels.some((c) => c.name === chosen)) showPeers(null);
  const row = (c) => {
    const grown = (what, total) => perSecond(`${c.name} ${what}`, view.now_unix_ms, total);
    const open = h("button", { class: "open", type: "button", "data-act": "peers", "data-of": c.name, "data-key": "channel/" + c.name,
      "aria-expanded": String(c.name === chosen), "aria-controls": "peers" }, c.name);
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
        bar(c.memory_bytes, c.memory_max_bytes, "nearly full")),
    ];
  };
  put("channels", table("Channels of messages", [["Channel", "nowrap"], ["Owner", "nowrap"], ["Senders", "number"], ["Receivers", "number"],
    ["Topics", "number"], ["Messages", "number"], ["Bytes", "number"], ["Delivered", "number"], ["Dropped", "number"],
    ["Lost rows", "number"], ["Held back", "number"], ["Waiting", "number"], ["Memory"]], channels.map(row)), missing(unreachable));
}

function showPeers(channel) {
  chosen = channel;
  for (const open of byId("channels").querySelectorAll("button")) {
    open.setAttribute("aria-expanded", String(open.dataset.of === chosen));
  }
  if (chosen === null) return put("peers");
  return refreshPeers();
}

async function refreshPeers() {
  const asked = chosen;
  if (asked === null) return;
  try {
    const view = await ask("api/v1/subscriptions?limit=50&channel=" + encodeURIComponent(asked));
    if (asked === chosen) drawPeers(view);
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
  const drains = (n) => n.role in ROLES && operates();
  const rows = view.cluster.nodes.map((n) => [
    h("div", {}, n.role in ROLES ? opener("node/" + n.id, n.id) : h("strong", {}, n.id), n.leader ? h("span", { class: "quiet" }, " leader") : null,
      n.role in ROLES ? spark("node/" + n.id, { "network-node": "packets_in_per_s", "proxy-node": "connections_per_s", "app-node": "accepts_per_s" }[n.role]) : null),
    n.role,
    h("div", {}, state(n), n.draining ? h("div", {}, mark("warn", "▲", "drains: no new connections")) : null, n.detail ? h("div", { class: "small quiet" }, n.detail) : null),
    policyOf(n),
    String(n.workers),
    n.started_unix_ms ? span(view.now_unix_ms - n.started_unix_ms) : "–",
    n.san.length ? h("code", {}, n.san.join(" ")) : "–",
    h("a", { href: n.admin + "/metrics", rel: "noreferrer", "data-key": "metrics/" + n.id }, n.admin.replace(/^https?:\/\//, "")),
    ...(operates() ? [drains(n) ? button(n.draining ? "resume" : "drain", n.draining ? "Resume" : "Drain", { of: n.id }, (n.draining ? "Resume " : "Drain ") + n.id) : ""] : []),
  ]);
  const heads = [["Node", "nowrap"], ["Role", "nowrap"], ["State"], ["Policy", "number"], ["Workers", "number"], ["Up", "number"], ["SAN"], ["Admin", "nowrap"]];
  put("nodes", rows.length
    ? table("Nodes of the cluster", operates() ? [...heads, ["Action", "nowrap"]] : heads, rows)
    : empty("No node is registered."));
  const opened = view.cluster.nodes.filter((n) => page.opened.has("node/" + n.id));
  put("node-charts", opened.map((n) => h("div", { class: "more" }, h("h3", {}, n.id), charts("node/" + n.id))));
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
  const reasons = new Map();
  for (const d of view.drops.filter((drop) => drop.total > 0)) {
    const sum = reasons.get(d.reason) || { reason: d.reason, at: [], recent: 0, total: 0 };
    reasons.set(d.reason, { ...sum, at: [...sum.at, d.node], recent: sum.recent + d.recent, total: sum.total + d.total });
  }
  const nodes = (at) => (at.length > 4 ? `${at.slice(0, 3).join(" ")} and ${at.length - 3} more` : at.join(" "));
  const row = (d) => {
    const [words, place] = reasonOf(d.reason);
    return [
      h("div", {}, h("code", {}, d.reason), h("div", { class: "small" }, words), h("div", { class: "small quiet" }, place), h("div", { class: "small quiet" }, "at " + nodes(d.at))),
      d.recent ? mark("warn", "▲", count(d.recent)) : "0", count(d.total)];
  };
  const seen = [...reasons.values()].sort((a, b) => b.recent - a.recent || b.total - a.total).slice(0, 10);
  put("drops", seen.length
    ? table("Dropped packets and messages", [["Reason"], ["Last min", "number"], ["Total", "number"]], seen.map(row))
    : empty("Nothing was dropped."));
}

function drawTop(view) {
  byId("identity").textContent = `${view.node} · release ${view.version}`;
  const { etcd, leader, nodes } = view.cluster;
  const banners = [];
  const banner = (kind, sign, text) => banners.push(h("p", { class: "banner " + kind }, h("span", { "aria-hidden": "true" }, sign + " "), text));
  if (!etcd.connected) {
    banner("bad", "✕", `etcd has been silent for ${span(etcd.silent_ms)}. The cluster serves on; what is shown of members and policy is the state last known.`);
  } else if (!leader) {
    banner("warn", "▲", "No management node leads at this time; policies cannot be changed.");
  }
  const away = nodes.filter((n) => n.state === "unreachable" || n.state === "lapsed").map((n) => n.id);
  if (away.length) banner("warn", "▲", `Not answering: ${away.join(", ")}`);
  // A live region is only changed when its text changes, or screen readers repeat it every two seconds.
  if (byId("banner").textContent !== banners.map((b) => b.textContent).join("")) put("banner", banners);
}

function pulse(kind, text) {
  byId("pulse").className = "pulse " + kind;
  byId("pulse-text").textContent = text;
}

function draw(view) {
  for (const part of [drawTop, drawTiers, drawPolicy, drawServices, drawChannels, drawNodes, drawFlows, drawDrops]) part(view);
}

async function refresh() {
  if (document.hidden) return;
  try {
    if (page.session === null) await refreshSession();
    const view = await ask(`api/v1/overview?limit=${SHOWN}&offset=${page.offset}&find=${encodeURIComponent(page.find)}`);
    // There are fewer services than before: the ones from the offset on are gone.
    if (page.offset && !view.services.services.length) {
      page.offset = 0;
      return refresh();
    }
    page.view = view;
    draw(view);
    refreshPeers();
    pulse("live", "live · " + new Date(view.now_unix_ms).toLocaleTimeString());
  } catch (error) {
    if (error.status === 401) {
      page.session = null;
      put("banner", h("p", { class: "banner warn" }, "You are not logged in. Run cspctl login and open the link that it prints."));
      return pulse("lost", "not logged in");
    }
    pulse("lost", "no answer from the management node");
  }
}

every(INTERVAL_MS, refresh);
document.addEventListener("visibilitychange", refresh);
