"""What the steps share: load by the client, checks."""

import contextlib
import json
import pathlib
import subprocess
import time

from cluster import VIP, policy
from transcript import Failed

HERE = pathlib.Path(__file__).resolve().parent
CURL_S = 10
# Nodes of a tier at once, where no connection can be lost: nothing runs yet, or nothing changes.
TOGETHER = ["--extra-vars", "csp_serial=10"]
NODES = {"nn-1": "network-node", "nn-2": "network-node", "pn-1": "proxy-node", "pn-2": "proxy-node"}
NODES |= {"an-1": "app-node", "an-2": "app-node", "mn-1": "mgmt-node"}
# How long the election of a VIP's owner may take, with the time for which the preferred one has to be well.
HELD_S = 20


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
def load(cluster, out, what, tolerated=None, kept=0, port=80):
    """The client makes a connection for each request to a port of the VIP while the block runs, and uses `kept` kept-alive
    connections beside. Failures are reported; more than `tolerated` of the former fail the step. Yields a dictionary that has the result after the block."""
    text = (HERE / "load.py").read_text(encoding="utf-8")
    cluster.client.ssh("cat > /root/load.py", input=text)
    words = ["ssh", "-F", str(cluster.client.ssh_config), "client", f"python3 /root/load.py {VIP} {port} 2 {kept}"]
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
    describe(out, what, result)
    if kept:
        describe(out, f"{what}, {kept} kept-alive connections", result["kept"])
    check(result["requests"] > result["failures"], f"{what}: no request was answered")
    check(tolerated is None or result["failures"] <= tolerated, f"{what}: {result['failures']} requests failed")


def describe(out, what, result):
    out.note(f"{what}: {result['requests']} requests, {result['failures']} failures, longest pause {result['pause_ms']} ms, served by {dict(sorted(result['servers'].items()))}")
    for error in result["errors"][:5]:
        out.note(f"  after {error['to'] - error['from']:.2f} s: {error['error']}")


def holder(cluster):
    """Returns the network node that answers for the VIP, or nothing."""
    (group,) = json.loads(cluster.cspctl("--output json vips"))["groups"]
    check(not group.get("others"), f"several network nodes answer for the VIP: {group}")
    return group["holder"]


def wait_held(cluster, node):
    """Waits until this network node answers for the VIP."""
    deadline = time.monotonic() + HELD_S
    while (held := holder(cluster)) != node:
        check(time.monotonic() < deadline, f"{held} answers for the VIP, not {node}")
        time.sleep(0.2)


def apply(cluster, ports):
    """Puts the policy with these services into force, by cspctl."""
    cluster.cspctl("policy apply -", input=json.dumps(policy(ports)))
