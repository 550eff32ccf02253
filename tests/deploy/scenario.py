"""The steps of the test, in order. Each takes the cluster and the transcript, and raises Failed."""

import contextlib
import json
import pathlib
import re
import subprocess
import time

from cluster import APPS, VIP, policy
from hosts import run as command
from transcript import Failed

HERE = pathlib.Path(__file__).resolve().parent
CURL_S = 10
# Nodes of a tier at once, where no connection can be lost: nothing runs yet, or nothing changes.
TOGETHER = ["--extra-vars", "csp_serial=10"]
NODES = {"nn-1": "network-node", "pn-1": "proxy-node", "pn-2": "proxy-node", "an-1": "app-node", "an-2": "app-node", "mn-1": "mgmt-node"}


def run(cluster, out, only):
    with out.step(f"{len(cluster.everyone())} hosts boot"):
        cluster.boot()
        cluster.write_inventory()
    for step in STEPS:
        name = step.__name__
        if name == "site" or not only or name in only:
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


def check(condition, text):
    if not condition:
        raise Failed(text)


def changed(recap):
    return {host: counts["changed"] for host, counts in recap.items() if counts["changed"]}


def curl(cluster, port=80):
    """Returns the body of the service's answer to the client."""
    done = cluster.client.ssh(f"curl --silent --show-error --fail --max-time {CURL_S} http://{VIP}:{port}/", check=False)
    check(done.returncode == 0, f"curl from the client to port {port}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def load(cluster, out, what, tolerated=None):
    """The client makes a connection for each request while the block runs. Failures are reported; more than `tolerated`
    fail the step. Yields a dictionary that has the result after the block."""
    text = (HERE / "load.py").read_text(encoding="utf-8")
    cluster.client.ssh("cat > /root/load.py", input=text)
    words = ["ssh", "-F", str(cluster.client.ssh_config), "client", f"python3 /root/load.py {VIP} 80 2"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        check(process.stdout.readline().strip() == "started", "the client's load does not start")
        result = {}
        yield result
        text, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    result.update(json.loads(text))
    out.note(f"{what}: {result['requests']} requests, {result['failures']} failures, longest pause {result['pause_ms']} ms")
    for error in result["errors"][:5]:
        out.note(f"  {error}")
    check(result["requests"] > result["failures"], f"{what}: no request was answered")
    check(tolerated is None or result["failures"] <= tolerated, f"{what}: {result['failures']} requests failed")


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
    check(key not in text, "the cluster key is in the output of --diff")
    nodes = cluster.nodes()
    check(sorted(nodes) == sorted(NODES), f"the cluster has {sorted(nodes)}")
    out.note(", ".join(f"{name} {node['state']}" for name, node in nodes.items()))


def path(cluster, out):
    """curl from the client reaches Debian's nginx on both application hosts, without kernel TCP"""
    curl(cluster)
    with load(cluster, out, "at rest", tolerated=0) as result:
        time.sleep(5)
    check(sorted(result["servers"]) == [f"<p>served by {app}</p>" for app in APPS], f"answers come from {result['servers']}")
    for app in APPS:
        sockets = cluster.hosts[app].ssh("ss -Htan 'sport = :80'").stdout
        check(not sockets, f"{app} has kernel sockets on port 80: {sockets}")
        unit = cluster.hosts[app].ssh("dpkg --verify nginx-light nginx-common; systemctl show -P FragmentPath nginx").stdout.split("\n")
        check(unit[0] == "/lib/systemd/system/nginx.service", f"nginx's unit on {app} is {unit}")


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


def etcd_away(cluster, out):
    """clients do not notice that etcd is away for longer than a lease"""
    etcd = cluster.hosts["mn-1"]
    with load(cluster, out, "without etcd", tolerated=0):
        etcd.ssh("systemctl stop etcd")
        time.sleep(15)
        curl(cluster)
        etcd.ssh("systemctl start etcd")
    cluster.play("check")


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
    with load(cluster, out, "while pn-2 leaves"):
        cluster.play("remove-node", "--extra-vars", "remove_node=pn-2")
    check("pn-2" not in cluster.nodes(), "pn-2 is still registered")
    left = cluster.hosts["pn-2"].ssh("ls -d /etc/csp /var/lib/csp; dpkg-query --show 'csp-*'", check=False).stdout
    check(not re.search(r"/|\d", left), f"pn-2 keeps {left}")
    with load(cluster, out, "while pn-2 comes back"):
        cluster.play("add-node", "--extra-vars", "add_nodes=pn-2")
    check(cluster.nodes()["pn-2"]["state"] == "ready", "pn-2 is not ready")


def rolling_upgrade(cluster, out):
    """rolling-upgrade.yml upgrades every node under load"""
    version = newer_packages(cluster)
    before = {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}
    with load(cluster, out, "while all nodes are upgraded"):
        _, text = cluster.play("rolling-upgrade")
    for cost in re.findall(r"the other nodes counted [^\"]*", text):
        out.note(cost)
    after = {name: node["started_unix_ms"] for name, node in cluster.nodes().items()}
    check(all(after[name] > before[name] for name in before), "a daemon was not restarted")
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
    with load(cluster, out, "while an upgrade fails"):
        cluster.play("rolling-upgrade", "--tags", "proxy_node", "--extra-vars", "upgrade_restart_always=true", fails=True)
    after = cluster.nodes()
    check(after["pn-2"]["started_unix_ms"] == before["pn-2"]["started_unix_ms"], "pn-2 was touched although pn-1 had failed")
    host.ssh("rm -r /run/systemd/system/csp-proxy-node.service.d; systemctl daemon-reload; systemctl reset-failed; systemctl start csp-proxy-node")
    cluster.play("check")


def backup_and_restore(cluster, out):
    """backup.yml and restore.yml bring an old policy back; clients do not notice"""
    cluster.play("backup", "--extra-vars", f"backup_dir={cluster.directory}/backups")
    snapshots = list((cluster.directory / "backups").glob("*.db"))
    check(len(snapshots) == 1, f"snapshots: {snapshots}")
    cluster.variables["policy_document"] = policy({80: APPS, 9090: ["an-1"]})
    cluster.write_inventory()
    cluster.play("site", "--tags", "policy")
    cluster.play("restore", "--extra-vars", f"restore_file={snapshots[0]}", fails=True)
    with load(cluster, out, "while etcd is restored"):
        cluster.play("restore", "--extra-vars", f"restore_file={snapshots[0]} restore_accept=true")
    check(curl(cluster, 8080) == "<p>served by an-2</p>", "the policy of the snapshot is not in force")
    cluster.variables["policy_document"] = policy({80: APPS})
    cluster.write_inventory()
    cluster.play("site", "--tags", "policy")
    curl(cluster)


def key_rotation(cluster, out):
    """rotate-keys.yml replaces the key, only with consent; site.yml refuses to"""
    cluster.new_key()
    cluster.play("site", "--tags", "key", fails=True)
    cluster.play("rotate-keys", fails=True)
    with load(cluster, out, "while the key is replaced"):
        cluster.play("rotate-keys", "--extra-vars", "rotate_accept_outage=true")
    curl(cluster)


def metrics(cluster, out):
    """Prometheus on the management host scrapes every node"""
    query = "curl --silent 'http://127.0.0.1:9090/api/v1/targets?state=active'"
    deadline = time.monotonic() + 40
    while True:
        targets = json.loads(cluster.hosts["mn-1"].ssh(query).stdout)["data"]["activeTargets"]
        down = [target["scrapeUrl"] for target in targets if target["health"] != "up"]
        if len(targets) == len(NODES) + 1 and not down:
            return
        check(time.monotonic() < deadline, f"{len(targets)} targets, not up: {down}")
        time.sleep(2)


STEPS = [
    check_mode,
    site,
    path,
    idempotence,
    metrics,
    firewall,
    policy_change,
    bad_configuration,
    etcd_away,
    reboot,
    remove_and_add,
    rolling_upgrade,
    failed_upgrade,
    backup_and_restore,
    key_rotation,
]
