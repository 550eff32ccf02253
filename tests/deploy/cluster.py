"""The cluster under test: its hosts, its inventory, and Ansible against it."""

import json
import pathlib
import re
import secrets
import shutil
import subprocess
import time

from hosts import Host, Network, run
from transcript import Failed

PLAYBOOK_S = 12 * 60
VIP = "10.76.0.100"
PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent

# Node, its address on the SAN and on the LAN, its group.
MEMBERS = [
    ("nn-1", "10.77.0.1", "", "csp_network_nodes"),
    ("nn-2", "10.77.0.7", "", "csp_network_nodes"),
    ("pn-1", "10.77.0.2", None, "csp_proxy_nodes"),
    ("pn-2", "10.77.0.3", None, "csp_proxy_nodes"),
    ("an-1", "10.77.0.4", None, "csp_app_nodes"),
    ("an-2", "10.77.0.5", None, "csp_app_nodes"),
    ("mn-1", "10.77.0.6", None, "csp_mgmt_nodes"),
]
APPS = ["an-1", "an-2"]
# The VIP's group. The first network node gets it back once it has been well for so long.
GROUP, NETWORK_NODES, PREEMPT_DELAY_S = "web", ["nn-1", "nn-2"], 3
# Members of etcd.
ETCD = ["mn-1", "pn-1", "an-1"]


class Cluster:
    def __init__(self, directory, root, debs, ansible):
        self.directory, self.root, self.debs, self.ansible = directory, root, debs, ansible
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.hosts = {name: Host(directory, name, san, lan) for name, san, lan, _ in MEMBERS}
        self.client = Host(directory, "client", lan="10.76.0.1")
        # Variables of hosts that are proxy nodes as well.
        self.edge = {}
        self.network = None
        self.runs = 0
        self.variables = {
            "csp_package_dir": str(directory / "packages"),
            "csp_ready_timeout_s": 60,
            # Hosts that share a kernel are one host to daemons, which would use shared memory: with ProtectProc= they see the kernel's
            # boot id instead of the one that systemd-nspawn gives to the host.
            "network_node_san_provider": "ucx",
            "proxy_node_san_provider": "ucx",
            "app_node_san_provider": "ucx",
            "network_node_lan": [{"interface": "lan0", "on_link": ["10.76.0.0/24"]}],
            "proxy_node_capacity": {"connections": 4096, "buffers_mib": 256},
            "app_node_services": ["nginx"],
            "chrony_sources": ["server 10.77.0.254 iburst"],
            "policy_document": policy({80: APPS}),
        }

    def everyone(self):
        return [*self.hosts.values(), self.client]

    def boot(self):
        run("mount", "--make-rprivate", "/")
        # systemd-nspawn keeps a directory for each host there.
        pathlib.Path("/run/systemd").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/systemd")
        self.network = Network()
        key = self.directory / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        (self.directory / "ssh_config").write_text(self.ssh_config(), encoding="utf-8")
        for host in self.everyone():
            host.prepare(self.root, (self.directory / "key.pub").read_text(encoding="utf-8"))
            host.boot()
        for host in self.everyone():
            host.wait_booted()

    def ssh_config(self):
        common = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nBatchMode yes\nLogLevel ERROR\nUser root\nConnectTimeout 5\n"
        common += f"IdentityFile {self.directory}/key\nIdentitiesOnly yes\nServerAliveInterval 5\nServerAliveCountMax 3\n"
        return "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in self.everyone()) + "Host *\n" + common

    def write_inventory(self):
        """Writes inventory, key, packages and Ansible's settings; to be called again when `variables` have changed."""
        groups = {}
        for name, _, _, group in MEMBERS:
            groups.setdefault(group, {"hosts": {}})["hosts"][name] = {}
        groups["csp_proxy_nodes"]["hosts"] |= {name: {} for name in self.edge}
        groups["csp_etcd"] = {"hosts": {name: {} for name in ETCD}}
        hosts = {name: {"csp_san_address": san} | self.edge.get(name, {}) for name, san, _, _ in MEMBERS}
        inventory = {"csp": {"children": groups, "hosts": hosts}, "csp_prometheus": {"hosts": {"mn-1": {}}}}
        self.write("hosts.yml", yaml(inventory))
        self.write("group_vars/all.yml", yaml(self.variables))
        if not (self.directory / "cluster.key").exists():
            self.new_key()
            shutil.copytree(self.debs, self.directory / "packages", ignore=lambda _, names: [n for n in names if not n.endswith(".deb")])
            self.copy_collection()
            self.write("ansible.cfg", ANSIBLE_CFG.format(directory=self.directory))

    def copy_collection(self):
        """Copies the collection: changes to it meanwhile do not concern this run."""
        to = self.directory / "collections/ansible_collections/csp/cluster"
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(PROJECT / "ansible", to)

    def new_key(self):
        self.write("cluster.key", secrets.token_hex(32) + "\n")

    def add_key(self):
        """Adds a generation to the cluster's keys, as `cspctl key add` does; returns the first one's line."""
        old = (self.directory / "cluster.key").read_text(encoding="utf-8").split()[-1]
        self.write("cluster.key", f"2 cluster {secrets.token_hex(32)}\n1 cluster {old}\n")
        return old

    def retire_key(self):
        """Removes the old generation of the cluster's keys, as `cspctl key retire` does."""
        newest = (self.directory / "cluster.key").read_text(encoding="utf-8").splitlines()[0]
        self.write("cluster.key", newest + "\n")

    def write(self, name, text):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def play(self, playbook, *options, timeout=PLAYBOOK_S, fails=False):
        """Runs a playbook; returns its recap by host, and its output. With `fails` it must fail."""
        self.runs += 1
        log = self.logs / f"{self.runs:02}-{playbook}.log"
        path = self.directory / "collections/ansible_collections/csp/cluster/playbooks" / f"{playbook}.yml"
        command = [self.ansible, "-i", str(self.directory / "hosts.yml"), str(path), *options]
        environment = {"PATH": PATH, "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}
        environment |= {"ANSIBLE_CONFIG": str(self.directory / "ansible.cfg"), "ANSIBLE_LOG_PATH": str(self.logs / f"{self.runs:02}.times")}
        try:
            with open(log, "w", encoding="utf-8") as output:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    timeout=timeout,
                    check=False,
                    start_new_session=True,
                )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{playbook} has not ended within {timeout} s; see {log.name}") from error
        text = log.read_text(encoding="utf-8")
        if (done.returncode != 0) != fails:
            tail = "\n".join(line for line in text.splitlines() if line.startswith(("fatal", "failed", "[ERROR")))[-1500:]
            raise Failed(f"{playbook} ended with status {done.returncode}; see {log.name}\n{tail}")
        return recap(text), text

    def task_times(self, task):
        """Returns for each host when the task of the last playbook began and ended on it, in Unix seconds."""
        found, begun = {}, None
        for line in (self.logs / f"{self.runs:02}.times").read_text(encoding="utf-8").splitlines():
            # ansible-core 2.19 has the level before the bar.
            match = re.match(r"(\S+ \S+),(\d{3}) p=\S+ u=\S+ n=\S+ [A-Z]*\| (.*)", line)
            if not match:
                continue
            at = time.mktime(time.strptime(match.group(1), "%Y-%m-%d %H:%M:%S")) + int(match.group(2)) / 1000
            if match.group(3).startswith("TASK ["):
                begun = at if re.match(rf"TASK \[(\S+ : )?{re.escape(task)}\]", match.group(3)) else None
            elif begun is not None and (done := re.match(r"(ok|changed): \[([^\] ]+)", match.group(3))):
                found[done.group(2)] = (begun, at)
        return found

    def nodes(self):
        """Returns what `cspctl nodes` reports, by node id."""
        return {node["id"]: node for node in json.loads(self.cspctl("--output json nodes"))["nodes"]}

    def cspctl(self, arguments, **options):
        """Runs cspctl on the management host; returns its output."""
        return self.hosts["mn-1"].ssh(f"cspctl --server https://10.77.0.6:9104 {arguments}", **options).stdout

    def etcdctl(self, member, arguments, identity="/etc/csp/identities/etcd"):
        """Returns the command that asks the member of etcd on that host, by the identity in a directory."""
        endpoint = f"--endpoints=https://{self.hosts[member].san}:2379 --command-timeout=2s"
        tls = f"--cacert={identity}/ca.pem --cert={identity}/certificate.pem --key={identity}/key.pem"
        return f"ETCDCTL_API=3 etcdctl {endpoint} {tls} {arguments}"

    def pki(self, *arguments):
        """Runs `cspctl pki` on the authority that Ansible has made; returns its JSON."""
        cspctl = max((self.directory / "pki.tools").glob("cspctl_*"), key=lambda path: path.stat().st_mtime)
        return run(cspctl, "--output", "json", "pki", "--dir", self.directory / "pki", *arguments).stdout

    def renew(self, lifetime):
        """Gives every holder a new certificate with that lifetime: without Ansible, since it must take less than that."""
        holders = [(name, group[4:-1].replace("_", "-"), name, [san], []) for name, san, _, group in MEMBERS]
        holders += [(name, "etcd", name, [self.hosts[name].san, "127.0.0.1"], ["localhost"]) for name in ETCD]
        holders += [("mn-1", "viewer", "prometheus", [], []), ("mn-1", "operator", "ansible", [], [])]
        special = {"viewer": "/etc/prometheus/csp/identity", "operator": "/root/.config/csp/identity"}
        for host, role, holder, addresses, names in holders:
            words = [*(f"--address={a}" for a in addresses), *(f"--name={n}" for n in names), "--lifetime", lifetime, "--force"]
            folder = json.loads(self.pki("issue", role, holder, *words))["folder"]
            to = special.get(role, f"/etc/csp/identities/{role}")
            archive = subprocess.run(["tar", "-cC", folder, "."], capture_output=True, check=True, timeout=10).stdout
            owned = f"chown --reference={to} {to}/*"
            words = ["ssh", "-F", str(self.directory / "ssh_config"), host, f"tar -xC {to} --no-same-owner --no-overwrite-dir && {owned}"]
            subprocess.run(words, input=archive, check=True, timeout=20, capture_output=True)

    def save_journals(self):
        """Keeps the hosts' journals for whoever looks into a failure."""
        for host in self.everyone():
            try:
                text = host.ssh("journalctl --no-pager --lines=2000; ss -tanp; nft list ruleset", timeout=20, check=False).stdout
                (self.logs / f"{host.name}.journal").write_text(text, encoding="utf-8")
            except (Failed, OSError):
                continue

    def how_to_enter(self):
        here = subprocess.run(["readlink", "/proc/self/ns/net"], capture_output=True, text=True, check=False, timeout=5).stdout.strip()
        return f"  nsenter -t $(lsns -n -t net -o NS,PID | awk '/{here[5:-1]}/ {{print $2}}') -m -n -- ssh -F {self.directory}/ssh_config mn-1"

    def stop(self):
        for host in self.everyone():
            host.stop()
        for host in self.everyone():
            if host.process:
                try:
                    host.process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    host.process.kill()
        if self.network:
            self.network.stop()


def yaml(value):
    """Returns YAML without a library for it: JSON is YAML."""
    return json.dumps(value, indent=2) + "\n"


def policy(ports):
    """Returns a policy with a service for each port of the VIP; `ports` maps to the nodes whose port 80 serve it."""
    services = [
        {"name": f"web-{port}", "vip": VIP, "port": port, "pool": [{"node": node, "port": 80} for node in nodes]}
        for port, nodes in ports.items()
    ]
    group = {"name": GROUP, "addresses": [VIP], "prefer": NETWORK_NODES, "preempt_delay_s": PREEMPT_DELAY_S}
    return {"apiVersion": "csp/v1", "services": services, "vip_groups": [group]}


def recap(text):
    """Returns Ansible's counts by host."""
    counts = {}
    for line in text.splitlines():
        match = re.match(r"(\S+)\s+: (ok=.*)$", line)
        if match:
            counts[match.group(1)] = {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", match.group(2))}
    return counts


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ANSIBLE_CFG = """[defaults]
collections_path = {directory}/collections
local_tmp = {directory}/tmp
forks = 8
gathering = smart
interpreter_python = /usr/bin/python3
retry_files_enabled = False
host_key_checking = False
nocows = True
timeout = 20
[ssh_connection]
pipelining = True
ssh_args = -F {directory}/ssh_config -o ControlMaster=auto -o ControlPersist=60s
control_path_dir = {directory}/cp
"""
