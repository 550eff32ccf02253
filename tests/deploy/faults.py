"""Faults of etcd, disks and clocks, under load."""

import json
import time

from cluster import APPS, ETCD
from steps import apply, check, curl, load
from transcript import Failed

# What an election of etcd and of the management node may take, and the operator's next try.
ELECTION_S = 30
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


def etcd_leader(cluster, out):
    """the leader of etcd is killed; another one takes over, and a policy is applied meanwhile"""
    leader = etcd_leader_of(cluster)
    with load(cluster, out, f"while {leader}, the leader of etcd, is away", tolerated=0):
        # Masked: systemd would start it again at once.
        cluster.hosts[leader].ssh("systemctl mask --runtime etcd; systemctl kill --signal=KILL etcd")
        begun = time.monotonic()
        try:
            while refusal := apply_refused(cluster, {80: APPS, 8081: ["an-1"]}):
                check(time.monotonic() < begun + ELECTION_S, f"no policy can be applied {ELECTION_S} s after the leader was killed: {refusal}")
            took = time.monotonic() - begun
            out.note(f"a policy was in force {took:.1f} s after the leader was killed; now {etcd_leader_of(cluster, leader)} leads")
            check(curl(cluster, 8081) == "<p>served by an-1</p>", "port 8081 is not an-1's")
        finally:
            cluster.hosts[leader].ssh("systemctl unmask --runtime etcd; systemctl reset-failed etcd; systemctl start etcd", timeout=90)
        cluster.play("check")
    restore_policy(cluster)


def apply_refused(cluster, ports):
    """Applies a policy; returns why that failed, nothing if it is in force."""
    try:
        apply(cluster, ports)
        return None
    except Failed as error:
        time.sleep(0.5)
        return str(error)


def etcd_leader_of(cluster, but=None):
    """Returns the host whose member leads, as the members but that of the host `but` report it."""
    host = next(name for name in ETCD if name != but)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for name in ETCD:
            if name == but:
                continue
            text = cluster.hosts[host].ssh(cluster.etcdctl(name, "endpoint status --write-out=json"), check=False).stdout
            for member in json.loads(text or "[]"):
                if member["Status"]["leader"] == member["Status"]["header"]["member_id"]:
                    return name
        time.sleep(0.5)
    check(False, "etcd has no leader within 30 s")
    return None


def etcd_away(cluster, out):
    """clients do not notice that all of etcd is away for longer than a lease"""
    with load(cluster, out, "without etcd", tolerated=0):
        for name in ETCD:
            cluster.hosts[name].ssh("systemctl stop etcd")
        time.sleep(15)
        curl(cluster)
        for name in ETCD:
            cluster.hosts[name].ssh("systemctl start --no-block etcd")
        cluster.play("check")


def full_disk(cluster, out):
    """a proxy whose disk is full applies policies, keeps the last policy that it stored, and stores again when there is room"""
    host, state = cluster.hosts["pn-2"], "/var/lib/csp/proxy-node"
    small = f"cp -a {state} /run/state && mount -t tmpfs -o size=128k tmpfs {state} && cp -a /run/state/. {state}/"
    with load(cluster, out, "while the disk of pn-2 is full", tolerated=0):
        restart_proxy(cluster, small)
        try:
            fill_disk(cluster, host, state)
        finally:
            restart_proxy(cluster, f"umount {state} && rm -r /run/state")


def fill_disk(cluster, host, state):
    stored = f"python3 -c 'import json; print(json.load(open(\"{state}/policy.json\"))[\"generation\"])'"
    host.ssh(f"head -c 1M /dev/zero > {state}/filler", check=False)
    before = host.ssh(stored).stdout
    apply(cluster, {80: APPS, 8082: ["an-2"]})
    check(curl(cluster, 8082) == "<p>served by an-2</p>", "port 8082 is not an-2's")
    check(host.ssh(stored).stdout == before, "a policy was stored on a full disk")
    journal = host.ssh("journalctl --unit=csp-proxy-node --no-pager --lines=50").stdout
    check("policy.json" in journal and "cannot be written" in journal, "the journal does not say that the policy is not stored")
    host.ssh(f"rm {state}/filler")
    restore_policy(cluster)
    check(int(host.ssh(stored).stdout) > int(before), "the policy is not stored although there is room")


def clock_steps(cluster, out):
    """a proxy's wall clock runs 20 s ahead, then steps by an hour to and fro: nothing fails, links are made again"""
    host, unit = cluster.hosts["pn-2"], "/run/systemd/system/csp-proxy-node.service.d"
    drop_in = f"[Service]\\nEnvironment=LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE=/run/clock FAKETIME_NO_CACHE=1\\n"
    drop_in += "Environment=FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1\\n"
    with load(cluster, out, "while the clock of pn-2 steps", tolerated=0):
        real = time.time()
        restart_proxy(cluster, f"echo '+20s' > /run/clock; mkdir -p {unit}; printf '{drop_in}' > {unit}/clock.conf; systemctl daemon-reload")
        try:
            ahead, took = cluster.nodes()["pn-2"]["started_unix_ms"] / 1000 - real, time.time() - real
            check(20 <= ahead <= 20 + took, f"the clock of pn-2 is between {ahead - took:.1f} and {ahead:.1f} s ahead, not 20")
            for step in ["+3600s", "-3600s", "+0s"]:
                host.ssh(f"echo '{step}' > /run/clock")
                time.sleep(5)
                curl(cluster)
            cluster.play("check")
        finally:
            restart_proxy(cluster, f"rm -r {unit} /run/clock; systemctl daemon-reload")


def restart_proxy(cluster, command):
    """Runs a command on pn-2 while its proxy is stopped, which is drained before."""
    cluster.cspctl("drain pn-2 --wait", timeout=90)
    cluster.hosts["pn-2"].ssh(f"systemctl stop csp-proxy-node && {{ {command}; }} && systemctl start csp-proxy-node", timeout=90)
    cluster.cspctl("resume pn-2")
    cluster.play("check")


def restore_policy(cluster):
    """Puts the inventory's policy into force again."""
    cluster.cspctl("policy apply -", input=json.dumps(cluster.variables["policy_document"]))
