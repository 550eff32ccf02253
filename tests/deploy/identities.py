"""Certificates: who may do what, new ones under load, a new authority, very short lives."""

import json
import time

from steps import NODES, TOGETHER, check, load

ADMIN = {"network-node": 9101, "proxy-node": 9102, "app-node": 9103, "mgmt-node": 9104}
MGMT = "https://10.77.0.6:9104"
VIEWER = "/etc/prometheus/csp/identity"
# How long short certificates live, how often they are renewed, and for how long the step watches.
SHORT_S, RENEW_S, WATCH_S = 60, 20, 150


def identities(cluster, out):
    """without a certificate, with a viewer's, and with a stolen one of an application node: no further than the role goes"""
    host = cluster.hosts["mn-1"]
    for name, tier in NODES.items():
        url = f"https://{cluster.hosts[name].san}:{ADMIN[tier]}"
        for path, wanted in [("/healthz", "200"), ("/metrics", "401")]:
            check(status(host, url + path) == wanted, f"{url}{path} without a certificate: {status(host, url + path)}, not {wanted}")
        check(status(host, f"{url}/metrics", VIEWER) == "200", f"{url}/metrics is refused to the viewer")
    drain = f"-X PUT -H 'Content-Type: application/json' {MGMT}/api/v1/nodes/pn-1/drain"
    check(status(host, drain, VIEWER) == "403", "a viewer may drain")
    check(status(host, drain) == "401", "a stranger may drain")
    check(status(cluster.hosts["an-1"], drain, "/etc/csp/identities/app-node") == "403", "an application node may drain")
    check(not cluster.nodes()["pn-1"]["draining"], "pn-1 drains")
    for directory in ["/etc/csp/identities/app-node", "/etc/csp/identities/mgmt-node", VIEWER]:
        place = cluster.hosts["an-1" if directory.endswith("app-node") else "mn-1"]
        modes = place.ssh(f"stat --format=%a {directory} {directory}/key.pem").stdout.split()
        check(modes == ["700", "600"], f"{directory} and its key have modes {modes}")


def etcd_users(cluster, out):
    """a stolen certificate of an application node writes its own registration in etcd, and nothing else"""
    stolen = "/etc/csp/identities/app-node"
    for key, allowed in [
        ("/csp/v1/nodes/app-node/an-1", True),
        ("/csp/v1/nodes/app-node/an-2", False),
        ("/csp/v1/nodes/proxy-node/an-1", False),
        ("/csp/v1/policy/00000000000000000099", False),
        ("/csp/v1/leader", False),
        ("/csp/v1/drain/pn-1", False),
    ]:
        # What is allowed is written as it stands, with its lease.
        value = f'"$({cluster.etcdctl("mn-1", f"get --print-value-only {key}", stolen)})"' if allowed else "stolen"
        put = f"put {'--ignore-lease ' if allowed else ''}{key} {value}"
        done = cluster.hosts["an-1"].ssh(cluster.etcdctl("mn-1", put, stolen), check=False)
        check((done.returncode == 0) == allowed, f"an-1 puts {key}: {done.stdout.strip()} {done.stderr.strip()}")
    bare = f"ETCDCTL_API=3 etcdctl --endpoints=http://{cluster.hosts['mn-1'].san}:2379 --command-timeout=2s get --prefix /"
    check(cluster.hosts["mn-1"].ssh(bare, check=False).returncode != 0, "etcd answers without TLS")


def certificate_rotation(cluster, out):
    """rotate-keys.yml --tags certificates replaces the authority and all certificates: no failed request, no restarted daemon"""
    before = cluster.nodes()
    old = serials(cluster)
    with load(cluster, out, "while the authority is replaced", tolerated=0, kept=2) as result:
        cluster.play("rotate-keys", "--tags", "certificates")
    check(result["kept"]["failures"] == 0, "a kept-alive connection failed")
    new = serials(cluster)
    check(not set(old.values()) & set(new.values()), "certificates were not replaced")
    after = cluster.nodes()
    restarted = [name for name in after if after[name]["started_unix_ms"] != before[name]["started_unix_ms"]]
    check(not restarted, f"restarted: {restarted}")
    authority = cluster.hosts["nn-1"].ssh("grep -c BEGIN /etc/csp/identities/network-node/ca.pem").stdout.strip()
    check(authority == "1", f"nn-1 trusts {authority} authorities")


def short_certificates(cluster, out):
    """certificates that live 60 s are renewed under load: nothing notices"""
    begun = time.monotonic()
    with load(cluster, out, f"with certificates of {SHORT_S} s", tolerated=0, kept=2) as result:
        renewals = 0
        while time.monotonic() < begun + WATCH_S:
            at = time.monotonic()
            cluster.renew(f"{SHORT_S}s")
            renewals += 1
            time.sleep(max(0.0, RENEW_S - (time.monotonic() - at)))
            states = {name: node["state"] for name, node in cluster.nodes().items()}
            check(set(states.values()) == {"ready"}, f"after {time.monotonic() - begun:.0f} s: {states}")
    out.note(f"{renewals} renewals")
    check(result["kept"]["failures"] == 0, "a kept-alive connection failed")
    cluster.play("site", "--tags", "identity", *TOGETHER)
    cluster.play("check")


def status(host, arguments, identity=None):
    """Returns the HTTP status that curl gets on the host, by the identity in a directory."""
    trusted = identity or "/etc/csp/identities/mgmt-node"
    words = f"--cacert {trusted}/ca.pem" + (f" --cert {identity}/certificate.pem --key {identity}/key.pem" if identity else "")
    return host.ssh(f"curl --silent --output /dev/null --write-out '%{{http_code}}' --max-time 5 {words} {arguments}", check=False).stdout


def serials(cluster):
    """Returns the serial number of each holder's newest certificate."""
    listed = json.loads(cluster.pki("list"))
    return {f"{entry['role']}/{entry['id']}": entry["serial"] for entry in listed["certificates"]}

