"""The steps of the test, in order. Each takes the cluster and the transcript, and raises Failed."""

import json
import re
import time

import edge
import faults
import identities
import servers
import supplied
import takeover
import upgrades
from cluster import APPS, ETCD, MEMBERS, policy
from hosts import run as command
from steps import NODES, TOGETHER, apply, changed, check, curl, load
from transcript import Failed


def run(cluster, out, only):
    with out.step(f"{len(cluster.everyone())} hosts boot"):
        cluster.boot()
        cluster.write_inventory()
    run_steps(cluster, out, ["site", *only] if only else [step.__name__ for step in STEPS])


def run_steps(cluster, out, names):
    for step in STEPS:
        if step.__name__ in names:
            attempt(step, cluster, out)


def attempt(step, cluster, out):
    """Runs a step. The steps after one that fails run as well, but for `site`, without which there is nothing to test."""
    try:
        with out.step(f"{step.__name__.replace('_', ' ')}: {step.__doc__}"):
            step(cluster, out)
    except Failed as error:
        if step is site:
            raise
        out.failure(error)


def check_mode(cluster, out):
    """site.yml --check --diff on hosts that have nothing yet"""
    _, text = cluster.play("site", "--check", "--diff", *TOGETHER)
    key = (cluster.directory / "cluster.key").read_text(encoding="utf-8").strip()
    check(key not in text, "the cluster key is in the output of --diff")
    check(not cluster.hosts["mn-1"].ssh("ls /etc/csp", check=False).stdout, "--check has changed a host")


def site(cluster, out):
    """site.yml installs the cluster"""
    _, text = cluster.play("site", "--diff", *TOGETHER)
    key = (cluster.directory / "cluster.key").read_text(encoding="utf-8").strip()
    check(key not in text and "PRIVATE KEY" not in text, "a key is in the output of --diff")
    nodes = cluster.nodes()
    check(sorted(nodes) == sorted(NODES), f"the cluster has {sorted(nodes)}")
    out.note(", ".join(f"{name} {node['state']}" for name, node in nodes.items()))


def kernel_tcp(host, port):
    """the kernel's TCP sockets on a port, as ss prints them, less those that are only bound (the filter's placeholders, which iproute2
    lists from 6.9 on as UNCONN)"""
    sockets = host.ssh(f"ss -Htan 'sport = :{port}'").stdout
    return "\n".join(line for line in sockets.splitlines() if not line.startswith("UNCONN"))


def path(cluster, out):
    """curl from the client reaches Debian's nginx on both application hosts, without kernel TCP"""
    curl(cluster)
    with load(cluster, out, "at rest", tolerated=0) as result:
        time.sleep(5)
    check(sorted(result["servers"]) == [f"<p>served by {app}</p>" for app in APPS], f"answers come from {result['servers']}")
    for app in APPS:
        sockets = kernel_tcp(cluster.hosts[app], 80)
        check(not sockets, f"{app} has kernel sockets on port 80: {sockets}")
        unit = cluster.hosts[app].ssh("dpkg --verify nginx-light nginx-common; systemctl show -P FragmentPath nginx").stdout.split("\n")
        check(unit[0].endswith("/lib/systemd/system/nginx.service"), f"nginx's unit on {app} is {unit}")


def systemctl_edit(cluster, out):
    """the packaged drop-in, by `systemctl edit nginx`, puts a service under the filter without Ansible"""
    host, directory = cluster.hosts["an-2"], "/etc/systemd/system/nginx.service.d"
    host.ssh(f"mv {directory}/csp.conf /run/csp.conf; systemctl daemon-reload; systemctl restart nginx")
    check(host.ssh("ss -Hltn 'sport = :80'").stdout, "nginx without a drop-in does not listen in the kernel")
    # systemd of Debian 13 puts a line's number before the file's name. It edits on terminals only.
    editor = "/run/editor"
    host.ssh(f"printf '%s\\n' '#!/bin/sh' 'for file; do :; done' 'cp /usr/share/doc/csp-app-node/examples/accelerate.conf \"$file\"' > {editor}")
    host.ssh(f'SYSTEMD_EDITOR="sh {editor}" script --quiet --return --command "systemctl edit nginx" /dev/null && systemctl restart nginx')
    check(not host.ssh("ss -Hltn 'sport = :80'").stdout, "nginx under the drop-in listens in the kernel")
    with load(cluster, out, "with the drop-in of `systemctl edit`", tolerated=0, kept=4) as result:
        # Workers of nginx inherit their listeners, which are not shown; connections are.
        deadline = time.monotonic() + 15
        while not [s for s in json.loads(cluster.cspctl("--output json sockets --process nginx"))["sockets"] if s["node"] == "an-2"]:
            check(time.monotonic() < deadline, "cspctl sockets shows no connection of an-2's nginx")
            time.sleep(0.5)
    check("<p>served by an-2</p>" in result["servers"], "an-2 serves nothing")
    host.ssh(f"systemctl revert nginx; mkdir -p {directory}; mv /run/csp.conf {directory}/; systemctl daemon-reload; systemctl restart nginx")


def idempotence(cluster, out):
    """a second run of site.yml changes nothing"""
    recap, _ = cluster.play("site", *TOGETHER)
    check(not changed(recap), f"the second run changed {changed(recap)}")
    recap, _ = cluster.play("site", "--check", "--diff", *TOGETHER)
    check(not changed(recap), f"--check after it reports {changed(recap)}")


def firewall(cluster, out):
    """a host that is no member reaches no port of the control plane, and others' tables stay"""
    member = cluster.hosts["mn-1"]
    member.ssh("nft add table inet other; nft add chain inet other mine '{ type filter hook input priority 0; }'")
    for host, port in [("10.77.0.6", 2379), ("10.77.0.6", 2380), ("10.77.0.6", 9104), ("10.77.0.2", 9102), ("10.77.0.2", 7100), ("10.77.0.2", 7356)]:
        reached = command("timeout", "1", "bash", "-c", f": < /dev/tcp/{host}/{port}", check=False).returncode == 0
        check(not reached, f"{host}:{port} is reached from 10.77.0.254, which is no member")
        inside = cluster.hosts["pn-2"].ssh(f"timeout 2 bash -c ': < /dev/tcp/{host}/{port}'", check=False).returncode == 0
        check(inside or port == 2380, f"{host}:{port} is not reached from pn-2, which is a member")
    cluster.play("site", "--tags", "firewall", "--extra-vars", '{"firewall_open_ports": [40000]}')
    check("chain mine" in member.ssh("nft list ruleset").stdout, "the role has flushed another table")
    member.ssh("nft flush ruleset")
    cluster.play("site", "--tags", "firewall")
    check("csp_cluster" in member.ssh("nft list ruleset").stdout, "a flushed table was not loaded again")


def policy_change(cluster, out):
    """a changed policy is applied, without a restart and without a failed request"""
    before = {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}
    cluster.variables["policy_document"] = policy({80: APPS, 8080: ["an-2"]})
    cluster.write_inventory()
    with load(cluster, out, "while the policy changes", tolerated=0):
        recap, text = cluster.play("site", "--tags", "policy", "--check", "--diff")
        check("web-8080" in text, "--check --diff does not show the new service")
        recap, _ = cluster.play("site", "--tags", "policy")
        check(changed(recap) == {"mn-1": 2}, f"changed: {changed(recap)}")
        check(curl(cluster, 8080) == "<p>served by an-2</p>", "port 8080 is not an-2's")
    recap, _ = cluster.play("site", "--tags", "policy")
    check(not changed(recap), "the policy is applied again although it is in force")
    check(before == {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}, "a daemon was restarted")
    cluster.variables["policy_document"] = policy({80: []})
    cluster.write_inventory()
    cluster.play("site", "--tags", "policy", fails=True)
    cluster.variables["policy_document"] = policy({80: APPS, 8080: ["an-2"]})
    cluster.write_inventory()


def bad_configuration(cluster, out):
    """a configuration that the daemon refuses is not installed, and nothing is restarted"""
    old = cluster.hosts["pn-1"].ssh("sha256sum /etc/csp/proxy-node.yaml; systemctl show -P MainPID csp-proxy-node").stdout
    cluster.play("site", "--tags", "proxy_node", "--extra-vars", '{"proxy_node_tcp": {"rto_min_ms": 0}}', fails=True)
    now = cluster.hosts["pn-1"].ssh("sha256sum /etc/csp/proxy-node.yaml; systemctl show -P MainPID csp-proxy-node").stdout
    check(old == now, "the configuration or the process has changed")


def reboot(cluster, out):
    """a rebooted application host comes back by itself; the other one serves meanwhile"""
    host = cluster.hosts["an-2"]
    boot = host.wait_booted()
    with load(cluster, out, "while an-2 reboots"):
        host.ssh("systemctl reboot", check=False)
        host.wait_booted(old_boot=boot)
        cluster.play("check")
    with load(cluster, out, "afterwards", tolerated=0) as result:
        time.sleep(3)
    check("<p>served by an-2</p>" in result["servers"], "an-2 serves nothing after its reboot")
    recap, _ = cluster.play("site", "--limit", "an-2")
    check(not changed(recap), f"the reboot has lost {changed(recap)}")


def remove_and_add(cluster, out):
    """remove-node.yml takes a proxy out, add-node.yml brings it back"""
    with load(cluster, out, "while pn-2 leaves", tolerated=0):
        cluster.play("remove-node", "--extra-vars", "remove_node=pn-2")
    check("pn-2" not in cluster.nodes(), "pn-2 is still registered")
    left = cluster.hosts["pn-2"].ssh("ls -d /etc/csp /var/lib/csp; dpkg-query --show 'csp-*'", check=False).stdout
    check(not re.search(r"/|\d", left), f"pn-2 keeps {left}")
    with load(cluster, out, "while pn-2 comes back", tolerated=0):
        cluster.play("add-node", "--extra-vars", "add_nodes=pn-2")
    node = cluster.nodes()["pn-2"]
    check(node["state"] == "ready" and not node["draining"], f"pn-2 does not serve: {node}")
    cluster.cspctl("drain pn-1")
    cluster.cspctl("drain pn-2", check=False)
    check(not cluster.nodes()["pn-2"]["draining"], "the last proxy node in service drains")
    deadline = time.monotonic() + 10
    while not (events := json.loads(cluster.cspctl("--output json events --kind node_drains --object node/pn-1"))["events"]):
        check(time.monotonic() < deadline, "no event says that pn-1 drains")
        time.sleep(0.5)
    out.note(f"an event of {events[-1]['origin']}: {events[-1]['text']}")
    cluster.cspctl("resume pn-1")


def backup_and_restore(cluster, out):
    """backup.yml and restore.yml bring an old policy back; clients do not notice"""
    apply(cluster, {80: APPS, 8080: ["an-2"]})
    cluster.play("backup", "--extra-vars", f"backup_dir={cluster.directory}/backups")
    snapshots = list((cluster.directory / "backups").glob("*.db"))
    check(len(snapshots) == 1, f"snapshots: {snapshots}")
    mode = snapshots[0].stat().st_mode & 0o777
    check(mode == 0o600, f"others may read the snapshot: {mode:o}")
    cluster.variables["policy_document"] = policy({80: APPS, 9090: ["an-1"]})
    cluster.write_inventory()
    cluster.play("site", "--tags", "policy")
    cluster.play("restore", "--extra-vars", f"restore_file={snapshots[0]}", fails=True)
    with load(cluster, out, "while etcd is restored", tolerated=0):
        cluster.play("restore", "--extra-vars", f"restore_file={snapshots[0]} restore_accept=true")
    check(curl(cluster, 8080) == "<p>served by an-2</p>", "the policy of the snapshot is not in force")
    cluster.variables["policy_document"] = policy({80: APPS})
    cluster.write_inventory()
    cluster.play("site", "--tags", "policy")
    curl(cluster)


def key_rotation(cluster, out):
    """rotate-keys.yml replaces the keys by a second generation: no failed request; site.yml refuses keys without a common one"""
    path = cluster.directory / "cluster.key"
    kept = path.read_text(encoding="utf-8")
    cluster.new_key()
    cluster.play("site", "--tags", "key", fails=True)
    path.write_text(kept, encoding="utf-8")
    old = cluster.add_key()
    with load(cluster, out, "while the keys are replaced", tolerated=0):
        cluster.play("rotate-keys", "--tags", "key")
        cluster.retire_key()
        cluster.play("rotate-keys", "--tags", "key")
    for name, _, _, group in MEMBERS:
        if group != "csp_mgmt_nodes":
            files = cluster.hosts[name].ssh("cat /etc/csp/*.key").stdout
            check(old not in files and (" cluster " in files) == (group == "csp_proxy_nodes"), f"{name} has keys that it must not have")
    curl(cluster)


def metrics(cluster, out):
    """Prometheus on the management host scrapes every node, and has the rules"""
    query = "curl --silent 'http://127.0.0.1:9090/api/v1/targets?state=active'"
    deadline = time.monotonic() + 40
    while True:
        targets = json.loads(cluster.hosts["mn-1"].ssh(query).stdout)["data"]["activeTargets"]
        down = [target["scrapeUrl"] for target in targets if target["health"] != "up"]
        if len(targets) == len(NODES) + len(ETCD) and not down:
            break
        check(time.monotonic() < deadline, f"{len(targets)} targets, not up: {down}")
        time.sleep(2)
    check(all(target["labels"].get("node") for target in targets if target["labels"]["job"] == "csp"), f"targets without a node: {targets}")
    answer = json.loads(cluster.hosts["mn-1"].ssh("curl --silent http://127.0.0.1:9090/api/v1/rules").stdout)
    rules = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
    check(len(rules) > 60 and all(rule["health"] != "err" for rule in rules), f"{len(rules)} rules: {[r for r in rules if r['health'] == 'err']}")


STEPS = [
    check_mode,
    site,
    path,
    systemctl_edit,
    idempotence,
    metrics,
    identities.identities,
    identities.etcd_users,
    firewall,
    policy_change,
    bad_configuration,
    servers.plain_servers,
    supplied.handler,
    supplied.plugin,
    supplied.driver_object,
    faults.etcd_leader,
    faults.etcd_away,
    faults.full_disk,
    faults.clock_steps,
    reboot,
    takeover.takeover,
    remove_and_add,
    upgrades.rolling_upgrade,
    upgrades.failed_upgrade,
    backup_and_restore,
    identities.certificate_rotation,
    key_rotation,
    identities.short_certificates,
    edge.edge,
]
