"""Steps about what operators supply: a handler at the proxies, packet plug-ins of level 2 and of level 1 at the network node. Units
restrict what daemons may do, so that what runs in a test of processes can fail on a host that was booted."""

import json
import platform
import subprocess
import time

from cluster import APPS, NETWORK_NODES, PROJECT, VIP, policy
from hosts import run as command
from steps import apply, check, curl

PORTS = {80: APPS, 8080: ["an-2"]}
CHANNEL_PORT = 5557
MESSAGES = 2_000
# The client's second address, whose packets plug-ins drop.
BLOCKED = "10.76.0.9"
SHOWN_S = 20

HANDLER = """(module
  (import "csp" "emit_same" (func $emit (param i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "csp_abi") (result i32) i32.const 1)
  (func (export "on_message") (param i32 i32 i32) (result i32) (call $emit (i32.const 0))))
"""
# Drops each packet.
PLUGIN = r"""(module (memory (export "memory") 1 1)
  (data (i32.const 16) "\18\00\00\00\01\00\00\00\40\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00")
  (func (export "csp_packet_abi") (result i32) i32.const 1)
  (func (export "csp_packet_declaration") (result i32) i32.const 16)
  (func (export "on_packet") (result i32) i32.const 1))
"""
# The same in the driver.
OBJECT = """#include "csp_xdp.h"
CSP_XDP(1);
SEC("xdp") int drop(struct xdp_md *context) { return csp_drop(context); }
char module_license[] SEC("license") = "Dual MIT/GPL";
"""
# Pushes numbers through the channel, and pulls them at the same time.
PUSH_AND_PULL = """
import sys, threading, zmq
endpoint, count = sys.argv[1], int(sys.argv[2])
context = zmq.Context()
pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
for socket in [pull, push]:
    socket.connect(endpoint)
sender = threading.Thread(target=lambda: [push.send(b"%d" % number) for number in range(count)], daemon=True)
sender.start()
seen = [int(pull.recv()) for _ in range(count) if pull.poll(20000)]
print("whole" if seen == list(range(count)) else f"{len(seen)} of {count}, the first {seen[:5]}")
context.destroy(linger=0)
"""


def bring(cluster, kind, name, content):
    """Gives a file to the cluster by cspctl on the management host. Returns the name by which a policy uses it."""
    path = cluster.directory / name
    path.write_bytes(content)
    words = ["ssh", "-F", str(cluster.directory / "ssh_config"), "mn-1", f"cat > /root/{name}"]
    subprocess.run(words, input=content, check=True, timeout=20, capture_output=True)
    return cluster.cspctl(f"{kind} /root/{name}").split("\n")[0]


def compiled(cluster, name, text):
    """Returns a module of WebAssembly for its text."""
    source = cluster.directory / f"{name}.wat"
    source.write_text(text, encoding="utf-8")
    command("wat2wasm", source, "-o", source.with_suffix(".wasm"))
    return source.with_suffix(".wasm").read_bytes()


def handler(cluster, out):
    """a supplied handler runs in a channel's path at the packaged proxies: each message once, in order"""
    module = bring(cluster, "handler put", "handler.wasm", compiled(cluster, "handler", HANDLER))
    channel = {"name": "jobs", "vip": VIP, "port": CHANNEL_PORT, "pattern": "push", "path": [{"handler": "mine"}]}
    document = {**policy(PORTS), "handlers": [{"name": "mine", "module": module}], "channels": [channel]}
    cluster.cspctl("policy apply -", input=json.dumps(document))
    words = f"python3 - tcp://{VIP}:{CHANNEL_PORT} {MESSAGES}"
    done = cluster.client.ssh(words, input=PUSH_AND_PULL).stdout.strip()
    check(done == "whole", f"messages through the handler: {done}")
    nodes = json.loads(cluster.cspctl("--output json contexts"))["nodes"]
    stages = [stage for node in nodes for stage in node["stages"] if stage["channel"] == "jobs"]
    seen = sum(stage["messages_total"] for stage in stages)
    check(seen == MESSAGES, f"the handler has seen {seen} of {MESSAGES} messages")
    out.note(f"{MESSAGES} messages through {', '.join(sorted({stage['handler'] for stage in stages}))}, {module[:12]}…")
    apply(cluster, PORTS)
    cluster.cspctl(f"handler remove {module}")


def plugin(cluster, out):
    """a supplied packet plug-in of level 2 drops what its rule names, at the packaged network node"""
    module = bring(cluster, "plugin install", "plugin.wasm", compiled(cluster, "plugin", PLUGIN))
    drops(cluster, out, module, "")


def driver_object(cluster, out):
    """a supplied eBPF object does so in the driver, loaded with the unit's capabilities"""
    source, built = cluster.directory / "drop.c", cluster.directory / "drop.o"
    source.write_text(OBJECT, encoding="utf-8")
    include = PROJECT / "network-node/xdp/include"
    triplet = f"-I/usr/include/{platform.machine()}-linux-gnu"
    command("clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", triplet, f"-I{include}", "-c", source, "-o", built)
    module = bring(cluster, "plugin install", "drop.o", built.read_bytes())
    drops(cluster, out, module, "--level 1")


def drops(cluster, out, module, options):
    cluster.client.ssh(f"ip address replace {BLOCKED}/24 dev lan0")
    cluster.cspctl(f"plugin create own {module} {options}")
    cluster.cspctl(f"rule add own4 prio 5 src {BLOCKED} proto tcp ingress plugin own fallback pass")
    shown = awaited(cluster)
    request = f"curl --silent --fail --max-time 2 --output /dev/null --interface {BLOCKED} http://{VIP}/"
    check(cluster.client.ssh(request, check=False).returncode != 0, f"{BLOCKED} is served although the plug-in drops its packets")
    curl(cluster)
    out.note(f"{shown['environment']}, {shown['supplied']['state']}: requests from {BLOCKED} are dropped, others are answered")
    cluster.cspctl("rule del own4")
    cluster.cspctl("plugin remove own")
    check(cluster.client.ssh(request, check=False).returncode == 0, f"{BLOCKED} is not served without the plug-in")
    cluster.cspctl(f"plugin uninstall {module}")


def awaited(cluster):
    """Returns the first instance once those of all network nodes run."""
    deadline = time.monotonic() + SHOWN_S
    while True:
        nodes = json.loads(cluster.cspctl("--output json plugin list"))["nodes"]
        own = [one for node in nodes for one in node["instances"] if one["name"] == "own"]
        if len(own) == len(NETWORK_NODES) and all(one["supplied"]["state"] == "running" for one in own):
            return own[0]
        check(time.monotonic() < deadline, f"the plug-in does not run: {own}")
        time.sleep(0.5)
