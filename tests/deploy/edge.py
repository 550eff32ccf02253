"""A host whose network node and proxy node run in one process."""

import time

from identities import ADMIN, VIEWER
from steps import TOGETHER, changed, check, load, wait_held

HOST, PROXY = "nn-1", "pn-3"
LOAD_S = 4
UNITS = ["csp-edge-node", "csp-network-node", "csp-proxy-node"]


def edge(cluster, out):
    """a network node's host becomes an edge with a proxy of its own, and two processes again"""
    host = cluster.hosts[HOST]
    cluster.edge = {HOST: {"csp_edge": True, "network_node_id": HOST, "proxy_node_id": PROXY}}
    cluster.write_inventory()
    cluster.play("site", *TOGETHER)
    check(active(host) == ["csp-edge-node"], f"{HOST} runs {active(host)}")
    nodes = cluster.nodes()
    for name in [HOST, PROXY]:
        check(nodes.get(name, {}).get("state") == "ready", f"{name} is {nodes.get(name)}")
    capabilities = host.ssh("grep -h Cap[EPI] /proc/$(systemctl show -P MainPID csp-edge-node)/task/*/status | awk '{print $2}' | sort -u").stdout.split()
    check(capabilities == ["0" * 16], f"threads of the edge have the capabilities {capabilities}")
    wait_held(cluster, HOST)
    with load(cluster, out, "through the edge", tolerated=0) as result:
        time.sleep(LOAD_S)
    # A network node gives new connections to the proxy of its own process.
    check(accepted(cluster) >= result["requests"], f"{PROXY} has accepted {accepted(cluster)} of {result['requests']} connections")
    recap, _ = cluster.play("site", *TOGETHER)
    check(not changed(recap), f"a second run changed {changed(recap)}")

    upgraded(cluster, out)

    cluster.edge[HOST]["csp_edge"] = False
    cluster.write_inventory()
    cluster.play("site", *TOGETHER)
    check(active(host) == ["csp-network-node", "csp-proxy-node"], f"{HOST} runs {active(host)}")
    wait_held(cluster, HOST)
    with load(cluster, out, "through two processes", tolerated=0):
        time.sleep(LOAD_S)


def upgraded(cluster, out):
    """Restarts the edge as an upgrade does: its network node gives the VIP away, its proxy node drains."""
    before = cluster.nodes()[HOST]["started_unix_ms"]
    options = "upgrade_restart_always=true upgrade_window_s=2 csp_drain_deadline_s=5"
    with load(cluster, out, "while the edge is upgraded", tolerated=0):
        cluster.play("rolling-upgrade", "--limit", HOST, "--tags", "proxy_node", "--extra-vars", options)
        moved = cluster.task_times("Drain the network node")
    check(cluster.nodes()[HOST]["started_unix_ms"] > before, "the edge was not restarted")
    check(sorted(moved) == [HOST], f"network nodes that gave their addresses to others: {sorted(moved)}")
    wait_held(cluster, HOST)


def accepted(cluster):
    """Returns how many connections of clients the edge's proxy has accepted."""
    files = f"--cacert {VIEWER}/ca.pem --cert {VIEWER}/certificate.pem --key {VIEWER}/key.pem"
    text = cluster.hosts["mn-1"].ssh(f"curl --silent {files} https://{cluster.hosts[HOST].san}:{ADMIN['proxy-node']}/metrics").stdout
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("csp_connections_passive_total"))


def active(host):
    states = host.ssh(f"systemctl is-active {' '.join(UNITS)}", check=False).stdout.split()
    return [unit for unit, state in zip(UNITS, states) if state == "active"]
