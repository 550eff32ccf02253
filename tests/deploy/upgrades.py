"""Upgrades of packages under load."""

import re

from hosts import run as command
from cluster import NETWORK_NODES
from steps import NODES, changed, check, load, wait_held

# Kept-alive connections beside the load, how long their node may drain, and when after the restart of the node the client notices.
KEPT, DRAIN_DEADLINE_S, NOTICED_S = 4, 15, 5


def rolling_upgrade(cluster, out):
    """rolling-upgrade.yml upgrades every node under load: no failed request; kept-alive connections end after the drain deadline only"""
    version, (first, second) = newer_packages(cluster), NETWORK_NODES
    wait_held(cluster, first)
    before = {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}
    with load(cluster, out, "while all nodes are upgraded", tolerated=0, kept=KEPT) as result:
        _, text = cluster.play("rolling-upgrade", "--extra-vars", f"csp_drain_deadline_s={DRAIN_DEADLINE_S} upgrade_window_s=2")
        times, moved = (cluster.task_times(f"Drain the {what}") for what in ["node", "network node"])
    for cost in re.findall(r"the other nodes counted [^\"]*", text):
        out.note(cost)
    after = {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}
    check(all(after[name] > before[name] for name in before), "a daemon was not restarted")
    check(sorted(times) == ["an-1", "an-2", "pn-1", "pn-2"], f"drained: {sorted(times)}")
    check(sorted(moved) == [first], f"network nodes that gave their addresses to others: {sorted(moved)}")
    check(after[second] < after[first], f"{first}, which answered for the VIP, was restarted before {second}")
    wait_held(cluster, first)
    for name, (begun, ended) in times.items():
        out.note(f"{name} drained for {ended - begun:.1f} s and was restarted {after[name] / 1000 - ended:.1f} s later")
    windows = [(times[name][1], after[name] / 1000 + NOTICED_S) for name in times]
    for error in result["kept"]["errors"]:
        allowed = any(begun <= error["to"] and error["from"] <= ended for begun, ended in windows)
        check(allowed, f"a kept-alive connection failed although its node was not past its drain deadline: {error}, windows {windows}")
    for name, tier in NODES.items():
        found = cluster.hosts[name].ssh(f"dpkg-query --show --showformat='${{Version}}' csp-{tier}").stdout
        check(found == version, f"{name} has version {found}, not {version}")
    recap, _ = cluster.play("rolling-upgrade")
    check(not changed(recap), f"there was nothing to upgrade, but {changed(recap)} changed")


def newer_packages(cluster):
    """Puts the packages with a higher version into the inventory's directory; returns the version."""
    version = None
    for deb in sorted(cluster.debs.glob("*.deb")):
        work = cluster.directory / "repack" / deb.stem
        work.parent.mkdir(exist_ok=True)
        command("dpkg-deb", "--raw-extract", deb, work)
        control = work / "DEBIAN/control"
        text = control.read_text(encoding="utf-8")
        old = re.search(r"^Version: (.*)$", text, re.M).group(1)
        version = f"{old}+test1"
        # Dependencies between these packages name the version as well.
        control.write_text(text.replace(f"= {old})", f"= {version})").replace(f"Version: {old}", f"Version: {version}"), encoding="utf-8")
        target = cluster.directory / "packages" / deb.name.replace(".deb", "+test1.deb")
        command("dpkg-deb", "-Znone", "--root-owner-group", "--build", work, target, timeout=120)
    return version


def failed_upgrade(cluster, out):
    """rolling-upgrade.yml stops at the first node that does not come back, and touches no other"""
    host = cluster.hosts["pn-1"]
    host.ssh("mkdir -p /run/systemd/system/csp-proxy-node.service.d")
    host.ssh("printf '[Service]\\nExecStartPre=/bin/false\\n' > /run/systemd/system/csp-proxy-node.service.d/broken.conf; systemctl daemon-reload")
    before = cluster.nodes()
    with load(cluster, out, "while an upgrade fails", tolerated=0):
        cluster.play("rolling-upgrade", "--tags", "proxy_node", "--extra-vars", "upgrade_restart_always=true", fails=True)
    after = cluster.nodes()
    check(after["pn-2"]["started_unix_ms"] == before["pn-2"]["started_unix_ms"], "pn-2 was touched although pn-1 had failed")
    host.ssh("rm -r /run/systemd/system/csp-proxy-node.service.d; systemctl daemon-reload; systemctl reset-failed; systemctl start csp-proxy-node")
    cluster.cspctl("resume pn-1")
    cluster.play("check")
