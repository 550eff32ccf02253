"""A host whose network node and proxy node run in one process."""

import time

from identities import ADMIN, VIEWER
from steps import TOGETHER, changed, check, load

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
    with load(cluster, out, "through the edge", tolerated=0) as result:
        time.sleep(LOAD_S)
    # A network node gives new connections to the proxy of its own process.
    check(accepted(cluster) >= result["requests"], f"{PROXY} has accepted {accepted(cluster)} of {result['requests']} connections")
    recap, _ = cluster.play("site", *TOGETHER)
    check(not changed(recap), f"a second run changed {changed(recap)}")

    cluster.edge[HOST]["csp_edge"] = False
    cluster.write_inventory()
    cluster.play("site", *TOGETHER)
    check(active(host) == ["csp-network-node", "csp-proxy-node"], f"{HOST} runs {active(host)}")
    with load(cluster, out, "through two processes", tolerated=0):
        time.sleep(LOAD_S)


def accepted(cluster):
    """Returns how many connections of clients the edge's proxy has accepted."""
    files = f"--cacert {VIEWER}/ca.pem --cert {VIEWER}/certificate.pem --key {VIEWER}/key.pem"
    text = cluster.hosts["mn-1"].ssh(f"curl --silent {files} https://{cluster.hosts[HOST].san}:{ADMIN['proxy-node']}/metrics").stdout
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("csp_connections_passive_total"))


def active(host):
    states = host.ssh(f"systemctl is-active {' '.join(UNITS)}", check=False).stdout.split()
    return [unit for unit, state in zip(UNITS, states) if state == "active"]
