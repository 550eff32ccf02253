// Why packets and messages are dropped, in words, and where the documents say more. The names are those of
// csp_drops_total; whatever is not in the table is shown by its name.
"use strict";

const PLACES = {
  server: "docs/limits.md, Waiting for a server",
  forwarded: "docs/limits.md, Services that are forwarded",
  room: "docs/limits.md, Room",
  who: "docs/limits.md, Who may take what",
  before: "docs/limits.md, Before the proxy and behind it",
  plugins: "docs/plugins.md",
  lan: "docs/operations.md",
  tcp: "docs/limits.md, The connection itself",
};
const DROPS = {
  tcp_backlog_full: ["More clients wait for a process than the service's backlog holds; they try again.", "server"],
  backlog_time: ["A client waited for a process until its time was over, and was reset.", "server"],
  no_server: ["No process or server of the service's pool takes connections.", "server"],
  no_proxy_header: ["A balancer that must send a PROXY header did not send a right one in time.", "server"],
  not_taken_over: ["A connection waited for the process that was to take it over, in vain.", "server"],
  expired: ["The packet's time to live was over: it may go in a circle between two balancers.", "forwarded"],
  went_round: ["A forwarded packet came back: the server's route leads to this node.", "forwarded"],
  tcp_table_full: ["The proxy's table of connections is full (capacity.connections).", "room"],
  no_budget: ["No memory for windows is left (capacity.buffers_mib).", "room"],
  san_stranger_evicted: ["A peer on the SAN did not prove who it is in time.", "who"],
  san_user_share: ["A user's processes hold their share of the links.", "who"],
  san_bad_token: ["A peer on the SAN showed a wrong token.", "who"],
  san_token_expired: ["A peer on the SAN showed a token that has expired: compare the clocks.", "who"],
  san_identity: ["A peer on the SAN is not who it says, by its certificate.", "who"],
  table_full: ["The network node's table of flows is full (capacity.flows).", "before"],
  fragment_room: ["More fragments wait for others than a worker holds: often a flood.", "before"],
  fragment_timeout: ["A datagram's other fragments did not come: they are lost on the way.", "before"],
  fragment_overlap: ["Fragments of a datagram overlap, which nothing honest sends.", "before"],
  fragment_duplicate: ["A fragment came twice.", "before"],
  fragment: ["A fragment cannot be part of a datagram that is taken.", "before"],
  tunnel_full: ["A proxy is slower than its clients' packets come; TCP sends them again.", "before"],
  plugin_host_lost: ["A plug-in host died, and what it had is lost.", "plugins"],
  plugin_host_full: ["A plug-in host, or the link to it, has no room.", "plugins"],
  plugin_hops: ["A packet went through more plug-ins than are allowed: they may lead in a circle.", "plugins"],
  plugin_fallback: ["A rule's plug-in did not run, and the rule says to drop then.", "plugins"],
  plugin: ["A plug-in dropped it, as it was told: such as a block, or a rate that was exceeded.", "plugins"],
  plugin_untransmitted: ["A plug-in sent it to an interface that this node does not have.", "plugins"],
  plugin_kernel_full: ["The host's kernel had no room for a packet that is its own.", "plugins"],
  plugin_kernel_error: ["The host's kernel refused a packet that is its own.", "plugins"],
  lan_receive_overrun: ["The worker is too slow for its LAN port: more workers, or other processors.", "lan"],
  lan_transmit_full: ["The LAN port is slower than what is sent.", "lan"],
  lan_transmit_error: ["The kernel did not transmit a frame.", "lan"],
  lan_truncated: ["A frame is longer than a buffer.", "lan"],
  lan_bad_offload: ["A device reported of a frame what it is not.", "lan"],
  bad_checksum: ["The checksum is wrong: a cable, a device, or a hostile sender.", "lan"],
  malformed: ["The packet contradicts itself.", "lan"],
  not_ours: ["The packet is for an address that is none of the cluster's.", "lan"],
  no_service: ["The packet is for a port at which the policy has no service.", "lan"],
  no_proxy: ["No proxy is connected that could take the connection.", "lan"],
  protocol: ["Neither TCP nor what the policy forwards.", "lan"],
  unresolved: ["The next hop's hardware address is not known: the neighbour does not answer.", "lan"],
  answer_limit: ["More answers to ICMP, ARP or resets were due than are sent in a second.", "lan"],
  search_limit: ["More searches for a connection's proxy were due than are made in a second.", "lan"],
  unknown_label: ["A segment of a connection that this node does not know any longer.", "lan"],
  stale_label: ["A segment of an earlier connection with the same label.", "lan"],
};

/** What a reason means, and where the documents say more. */
function reasonOf(reason) {
  const found = DROPS[reason];
  if (found) return [found[0], PLACES[found[1]]];
  if (reason.startsWith("tcp_")) return ["The TCP engine did not take it: " + reason.slice(4).replaceAll("_", " ") + ".", PLACES.tcp];
  if (reason.startsWith("san_")) return ["A peer on the SAN was refused: " + reason.slice(4).replaceAll("_", " ") + ".", PLACES.who];
  return [reason.replaceAll("_", " "), "docs/limits.md"];
}
