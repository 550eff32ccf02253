"""Plain servers: Debian's nginx in the kernel of a host that is no member of the cluster, behind the VIP beside a program of the cluster."""

import contextlib
import time

from cluster import APPS, VIP
from steps import changed, check, load

# Services: two plain servers beside the nginx of an application host, and a server by its name with a backup.
MIXED, NAMED = 8090, 8091
EGRESS, REACHED = "10.76.0.101", "10.76.0.8/29"
# The servers' addresses, which the client's host has besides its own.
SERVERS, SERVER_PORT = {"plain-1": "10.76.0.11", "plain-2": "10.76.0.12", "spare": "10.76.0.13"}, 8080
NAME, NAME_OF = "plain.csp.test", "plain-1"
ALL = [APPS[0], "plain-1", "plain-2"]
PROXIES = ["pn-1", "pn-2"]
CHECK = {"interval_ms": 500, "timeout_ms": 500, "rise": 2, "fall": 2, "http": {"path": "/health", "host": NAME}}
# `fall` or `rise` checks, given or take an eighth, the last one's time-out, and as long again for cspctl and a busy machine.
SHOWN_S = 2 * (CHECK["fall"] * CHECK["interval_ms"] * 1.125 + CHECK["timeout_ms"]) / 1000
# Names are looked up every 10 s; each look-up takes 5 s at most.
NAME_S = 20
LOAD_S = 2
# A connection whose SYN nobody answers takes a second more.
LONGEST_MS = 900

UNIT = """[Unit]
Description=%i, an nginx that the cluster knows by its address
[Service]
ExecStart=/usr/sbin/nginx -c /etc/plain/%i.conf
KillSignal=QUIT
"""
CONF = """user www-data;
daemon off;
worker_processes 1;
pid /run/{name}.pid;
error_log /var/log/nginx/{name}.error;
events {{ }}
http {{
  access_log /var/log/nginx/{name}.log;
  server {{ listen {address}:{port}; root /srv/{name}; }}
}}
"""


def plain_servers(cluster, out):
    """servers without software of the cluster answer through the VIP, by address and by name; one that fails its check or dies is out until it is back"""
    former = cluster.variables["policy_document"]
    with nginx(cluster):
        try:
            recap = put(cluster, out, document(former))
            check(changed(recap) == {"mn-1": 2}, f"changed: {changed(recap)}")
            spread(cluster, out)
            by_name(cluster, out)
            health = f"/srv/{NAME_OF}/health"
            fails(cluster, out, "fails its check", f"mv {health} {health}.not", f"mv {health}.not {health}", tolerated=0)
            # Requests that the dead server had are lost.
            unit = f"plain@{NAME_OF}"
            fails(cluster, out, "is dead", f"systemctl kill --signal=KILL {unit}", f"systemctl start {unit}", tolerated=None)
            seen = cluster.client.ssh("cat /var/log/nginx/plain-*.log /var/log/nginx/spare.log | cut -d ' ' -f 1 | sort -u").stdout.split()
            check(seen == [EGRESS], f"the servers' peers are {seen}, not {EGRESS}")
        finally:
            for proxy in PROXIES:
                cluster.hosts[proxy].ssh(f"sed -i '/{NAME}/d' /etc/hosts")
            put(cluster, out, former)


@contextlib.contextmanager
def nginx(cluster):
    """The servers run on the client's host while the block does."""
    client = cluster.client
    client.ssh("mkdir -p /etc/plain; cat > /run/systemd/system/plain@.service; systemctl daemon-reload", input=UNIT)
    for name, address in SERVERS.items():
        client.ssh(f"cat > /etc/plain/{name}.conf", input=CONF.format(name=name, address=address, port=SERVER_PORT))
        files = f"mkdir -p /srv/{name}; echo '<p>served by {name}</p>' > /srv/{name}/index.html; echo well > /srv/{name}/health"
        client.ssh(f"{files}; ip address replace {address}/24 dev lan0; rm -f /var/log/nginx/{name}.log; systemctl start plain@{name}")
    try:
        yield
    finally:
        for name, address in SERVERS.items():
            client.ssh(f"systemctl stop plain@{name}; systemctl reset-failed plain@{name}; ip address del {address}/24 dev lan0", check=False)


def document(former):
    """Returns the policy with the two services more. The group that moves between the network nodes has the egress address as well."""
    at = {name: {"address": address, "port": SERVER_PORT} for name, address in SERVERS.items()}
    pools = {MIXED: [at["plain-1"], at["plain-2"], {"node": APPS[0], "port": 80}]}
    pools[NAMED] = [{"name": NAME, "port": SERVER_PORT}, {**at["spare"], "backup": True}]
    services = [{"name": f"plain-{port}", "vip": VIP, "port": port, "pool": pool, "servers": {"check": CHECK}} for port, pool in pools.items()]
    (group,) = former["vip_groups"]
    groups = [{**group, "addresses": [VIP, EGRESS]}]
    egress = [{"address": EGRESS, "destinations": [REACHED]}]
    return {**former, "services": [*former["services"], *services], "egress": egress, "vip_groups": groups}


def put(cluster, out, policy):
    """Puts a policy into force by the collection; returns Ansible's counts."""
    cluster.variables["policy_document"] = policy
    cluster.write_inventory()
    with load(cluster, out, "while the policy changes", tolerated=0):
        recap, _ = cluster.play("site", "--tags", "policy")
    return recap


def spread(cluster, out):
    """Each server has its share of the connections."""
    for name in ["plain-1", "plain-2"]:
        wait_shown(cluster, f"{SERVERS[name]}:{SERVER_PORT}", " up ")
    served = by_server(only(cluster, out, "plain servers beside a program", MIXED, ALL))
    check(min(served.values()) >= sum(served.values()) / (2 * len(ALL)), f"a server has less than half of its share: {served}")
    # Kept-alive connections count: a server that has more of them gets fewer others.
    kept = only(cluster, out, "plain servers beside a program", MIXED, ALL, kept=4)["kept"]
    check(not kept["failures"], f"{kept['failures']} requests of kept-alive connections failed: {kept['errors']}")


def by_name(cluster, out):
    """The backup serves while no proxy can look the name up, and no longer."""
    wait_shown(cluster, f"{NAME}:{SERVER_PORT}", "no address")
    only(cluster, out, "while the name is not known", NAMED, ["spare"])
    for proxy in PROXIES:
        cluster.hosts[proxy].ssh(f"echo {SERVERS[NAME_OF]} {NAME} >> /etc/hosts")
    begun = time.monotonic()
    # A proxy that does not know the name yet gives its clients to the backup.
    words = f"for n in $(seq 20); do curl --silent --max-time 5 http://{VIP}:{NAMED}/; done | sort -u"
    while (served := cluster.client.ssh(words).stdout.strip()) != page(NAME_OF):
        check(time.monotonic() < begun + NAME_S, f"the name is known for {NAME_S} s, and {served} serve")
    out.note(f"{NAME} serves at both proxies {time.monotonic() - begun:.1f} s after it is in /etc/hosts")
    wait_shown(cluster, f"{SERVERS[NAME_OF]}:{SERVER_PORT} ({NAME})", " up ")
    only(cluster, out, "by name", NAMED, [NAME_OF])


def fails(cluster, out, how, away, back, tolerated):
    """The first server fails by the command `away`, and works again by `back`: others serve meanwhile."""
    place = f"{SERVERS[NAME_OF]}:{SERVER_PORT}"
    with load(cluster, out, f"while {NAME_OF} {how}", tolerated=tolerated, port=MIXED):
        cluster.client.ssh(away)
        begun = time.monotonic()
        shown = wait_shown(cluster, place, "down (", *(f"{proxy}: " for proxy in PROXIES))
        out.note(f"after {time.monotonic() - begun:.1f} s cspctl shows {' '.join(shown.split())}")
    only(cluster, out, f"{NAME_OF} {how}", MIXED, [name for name in ALL if name != NAME_OF])
    only(cluster, out, f"{NAME_OF} {how}, and is the only one but the backup", NAMED, ["spare"])
    with load(cluster, out, f"while {NAME_OF} comes back", tolerated=0, port=MIXED) as result:
        cluster.client.ssh(back)
        wait_shown(cluster, place, " up ")
        time.sleep(LOAD_S)
    check(sorted(by_server(result)) == ALL, f"answers come from {by_server(result)} although {NAME_OF} is back")
    only(cluster, out, f"{NAME_OF} is back", NAMED, [NAME_OF])


def only(cluster, out, what, port, names, kept=0):
    """No request fails, none is late, and these servers answer, no others. Returns the result of the load."""
    with load(cluster, out, what, tolerated=0, kept=kept, port=port) as result:
        time.sleep(LOAD_S)
    check(sorted(by_server(result)) == names, f"{what}: answers come from {by_server(result)}, not from {names}")
    check(result["longest_ms"] < LONGEST_MS, f"{what}: a request took {result['longest_ms']} ms")
    return result


def wait_shown(cluster, place, *words):
    """Waits until `cspctl services` shows the server at `place` with all these words; returns its row."""
    deadline = time.monotonic() + SHOWN_S
    while True:
        row = next((line for line in cluster.cspctl("services").splitlines() if place in line), "")
        if all(word in row for word in words):
            return row
        check(time.monotonic() < deadline, f"cspctl services does not show {place} with {words}: {row!r}")
        time.sleep(0.1)


def page(name):
    return f"<p>served by {name}</p>"


def by_server(result):
    """Returns how many answers each server gave."""
    pages = {page(name): name for name in [*SERVERS, *APPS]}
    return {pages.get(text, text): count for text, count in result["servers"].items()}
