// The nodes of each tier and the links between them, as a drawing, and as a table for those who do not see it.
"use strict";

const TIERS = [["network-node", "Network nodes"], ["proxy-node", "Proxy nodes"], ["app-node", "Application nodes"]];
const BOX = { width: 190, height: 44, gap: 12, between: 130, top: 26 };
const DRAWN = 24; // nodes of a tier that are drawn

function topologyOf(nodes, links) {
  const columns = TIERS.map(([role]) => nodes.filter((n) => n.role === role));
  const rows = Math.max(1, ...columns.map((column) => Math.min(column.length, DRAWN)));
  const height = BOX.top + rows * (BOX.height + BOX.gap);
  const place = new Map();
  columns.forEach((column, at) => {
    const drawn = column.slice(0, DRAWN);
    const above = (rows - drawn.length) * (BOX.height + BOX.gap) / 2;
    drawn.forEach((n, row) => place.set(n.id, { x: at * (BOX.width + BOX.between), y: BOX.top + above + row * (BOX.height + BOX.gap) }));
  });
  return { columns, place, height, width: 3 * BOX.width + 2 * BOX.between, links: links.filter((l) => place.has(l.node) && place.has(l.proxy)) };
}

const linkState = (l) => (l.up === l.links ? ["good", "●", "up"] : l.up === 0 ? ["bad", "✕", "down"] : ["warn", "▲", `${l.up} of ${l.links} up`]);

function drawLink(t, l) {
  const [node, proxy] = [t.place.get(l.node), t.place.get(l.proxy)];
  const [left, right] = node.x < proxy.x ? [node, proxy] : [proxy, node];
  const [kind, sign] = linkState(l);
  const from = [left.x + BOX.width, left.y + BOX.height / 2];
  const to = [right.x, right.y + BOX.height / 2];
  const line = shape("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], class: "link " + kind });
  // A sign beside the colour where something is wrong.
  const label = kind === "good" ? [] : shape("text", { x: (from[0] + to[0]) / 2, y: (from[1] + to[1]) / 2, class: "sign " + kind }, sign);
  return [line, label];
}

function drawBox(n, at) {
  const [kind, sign, text] = n.draining ? ["warn", "▲", "drains"] : STATES[n.state] || ["warn", "?", n.state];
  return shape("g", { transform: `translate(${at.x} ${at.y})`, class: "node " + kind },
    shape("rect", { width: BOX.width, height: BOX.height, rx: 7 }),
    shape("text", { x: 12, y: 18, class: "name" }, n.id.length > 22 ? n.id.slice(0, 21) + "…" : n.id),
    shape("text", { x: 12, y: 35, class: "says" }, `${sign} ${text}`));
}

function drawTopology(nodes, view) {
  const t = topologyOf(nodes, view.links);
  const left = t.columns.reduce((sum, column) => sum + Math.max(0, column.length - DRAWN), 0);
  const words = TIERS.map(([, title], at) => `${t.columns[at].length} ${title.toLowerCase()}`).join(", ");
  const titles = TIERS.map(([, title], at) => shape("text", { x: at * (BOX.width + BOX.between), y: 14, class: "tier" }, title));
  const empties = t.columns.flatMap((column, at) => (column.length ? [] : shape("text", { x: at * (BOX.width + BOX.between), y: BOX.top + 22, class: "says" }, "✕ none registered")));
  const drawing = shape("svg", { viewBox: `-2 0 ${t.width + 4} ${t.height}`, role: "img", class: "topology", "aria-label": `Topology: ${words}. The table of links says the same.` },
    titles, empties, t.links.flatMap((l) => drawLink(t, l)), t.columns.flatMap((column) => column.filter((n) => t.place.has(n.id)).map((n) => drawBox(n, t.place.get(n.id)))));
  const bad = view.links.filter((l) => l.up < l.links).length;
  const row = (l) => {
    const [kind, sign, text] = linkState(l);
    return [l.node, l.proxy, l.provider, count(l.links), mark(kind, sign, text)];
  };
  const open = page.opened.has("links");
  put("topology", scroller("Drawing of the topology", drawing),
    left ? h("p", { class: "small quiet" }, `${left} more nodes are in the list of nodes`) : null,
    h("p", { class: "small" }, opener("links", several(view.links.length, "link")), " ",
      view.links.length ? (bad ? mark("bad", "✕", `${bad} not up in all parts`) : mark("good", "●", "all up")) : null),
    open ? scroller("Links", table("Links between nodes", [["Node", "nowrap"], ["Proxy", "nowrap"], ["Provider"], ["Links", "number"], ["State"]], view.links.map(row))) : null,
    missing(view.unreachable));
}

async function refreshTopology() {
  if (page.view !== null) drawTopology(page.view.cluster.nodes, await ask("api/v1/topology"));
}

every(2000, refreshTopology);
