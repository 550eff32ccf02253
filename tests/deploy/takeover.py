"""The network node that answers for the VIP dies: the other one takes over, and gives the VIP back."""

import contextlib
import pathlib
import subprocess
import time

from cluster import NETWORK_NODES, PREEMPT_DELAY_S, PROJECT, VIP
from steps import HELD_S, check, load, wait_held

PROBER = PROJECT / "tests/cluster/apps/prober.py"
# Time-out of an attempt of the prober: a gap is measured to within it. And the longest that is allowed.
TIMEOUT_MS, GAP_S = 50, 1.0
KEPT = 4


def takeover(cluster, out):
    """the process of the network node that answers for the VIP is killed: the other one answers, and gives the VIP back; no connection ends"""
    first, second = NETWORK_NODES
    wait_held(cluster, first)
    host = cluster.hosts[first]
    before = cluster.nodes()[first]["started_unix_ms"]
    with load(cluster, out, f"while {first} is killed and comes back", tolerated=0, kept=KEPT) as result, prober(cluster) as gaps:
        time.sleep(2)
        killed = host.ssh("systemctl kill --signal=KILL csp-network-node; date +%s.%N").stdout
        wait_held(cluster, second)
        out.note(f"{second} answers for the VIP when cspctl is asked, {time.time() - float(killed):.1f} s after {first} was killed")
        restarted(cluster, first, before)
        wait_held(cluster, first)
        time.sleep(2)
    longest = max(gaps)
    out.note(f"no new connection for {longest * 1000:.0f} ms at most, in {len(gaps)} attempts, {PREEMPT_DELAY_S} s after {first} was back included")
    check(longest <= GAP_S, f"the VIP did not answer for {longest:.2f} s")
    kept = result["kept"]
    check(not kept["failures"], f"{kept['failures']} kept-alive connections failed: {kept['errors']}")


def restarted(cluster, node, before):
    """Waits until systemd has started the node again."""
    deadline = time.monotonic() + HELD_S
    while cluster.nodes().get(node, {}).get("started_unix_ms", 0) <= before:
        check(time.monotonic() < deadline, f"systemd has not started {node} again")
        time.sleep(0.2)


@contextlib.contextmanager
def prober(cluster):
    """The client opens a connection every 10 ms while the block runs. Yields a list that has the times between answered attempts, in
    seconds, after the block."""
    cluster.client.ssh("cat > /root/prober.py", input=PROBER.read_text(encoding="utf-8"))
    words = ["ssh", "-F", str(cluster.client.ssh_config), "client", f"timeout 120 python3 /root/prober.py {VIP} 80 {TIMEOUT_MS}"]
    log = pathlib.Path(cluster.logs) / "prober.log"
    gaps = []
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True)
        try:
            yield gaps
        finally:
            process.kill()
            process.wait()
    attempts = [line.split() for line in log.read_text(encoding="utf-8").splitlines() if len(line.split()) > 1]
    answered = [float(at) for at, outcome, *_ in attempts if outcome == "up"]
    check(len(answered) > 1, f"the prober was not answered: {attempts[:3]}")
    # An outage at the end ends with the last attempt.
    gaps += [later - earlier for earlier, later in zip(answered, answered[1:] + [float(attempts[-1][0])])]
