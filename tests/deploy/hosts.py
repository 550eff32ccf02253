"""Booted hosts: systemd-nspawn on overlays of a root of their release, on two bridges of this network namespace."""

import json
import pathlib
import secrets
import subprocess
import threading
import time

from transcript import Failed

BOOT_S = 60
COMMAND_S = 60
# With --keep-unit systemd-nspawn leaves it to its caller to start it again when the host reboots.
EXIT_REBOOT = 133
# The harness on the two networks. It is no member of the cluster.
SAN_GATEWAY, LAN_GATEWAY = "10.77.0.254/24", "10.76.0.254/24"
CAPABILITIES = "CAP_NET_ADMIN,CAP_NET_RAW,CAP_BPF,CAP_IPC_LOCK,CAP_PERFMON,CAP_SYS_NICE"


def run(*command, timeout=COMMAND_S, check=True, **options):
    """Runs a command of this machine; returns it with its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL, **options)
    if check and done.returncode:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


class Network:
    """Two bridges, and the ports of the hosts on them. A host that boots again has new ports: a thread plugs them in."""

    def __init__(self):
        run("ip", "link", "set", "lo", "up")
        for bridge, address in [("san", SAN_GATEWAY), ("lan", LAN_GATEWAY)]:
            run("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0", "stp_state", "0")
            run("ip", "address", "add", address, "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.plug, daemon=True)
        self.thread.start()

    def plug(self):
        while not self.stopping.wait(0.2):
            # Not from /sys, which shows the network namespace that it was mounted in.
            for link in json.loads(run("ip", "-json", "link", "show", "type", "veth").stdout or "[]"):
                port = link.get("ifname", "")
                if port[3:4] == "-" and "master" not in link:
                    run("ip", "link", "set", port, "master", port[:3], "up", check=False)

    def stop(self):
        self.stopping.set()
        self.thread.join(timeout=5)


class Host:
    """One host. `san` and `lan` are its addresses; an empty one is a port without address, None no port."""

    def __init__(self, directory, name, san=None, lan=None):
        self.name, self.san, self.lan = name, san, lan
        self.address = san or lan
        self.directory = directory / "hosts" / name
        self.log = directory / "logs" / f"{name}.console"
        self.ssh_config = directory / "ssh_config"
        self.control_group = f"csp-deploy-{directory.name}/{name}"
        self.process = None

    def prepare(self, root, public_key):
        """Makes the host's file system: the shared root below, what is this host's own above."""
        upper, work, merged = (self.directory / part for part in ["upper", "work", "merged"])
        for part in [upper, work, merged]:
            part.mkdir(parents=True)
        files = {
            "etc/hostname": f"{self.name}\n",
            "etc/machine-id": f"{secrets.token_hex(16)}\n",
            "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n",
            "root/.ssh/authorized_keys": public_key,
            "var/www/html/index.html": f"<p>served by {self.name}</p>\n",
        }
        for port, address in [("san0", self.san), ("lan0", self.lan)]:
            if address is not None:
                # An address, or none at all: also no link-local one.
                body = f"Address={address}/24\n" if address else "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
                files[f"etc/systemd/network/{port}.network"] = f"[Match]\nName={port}\n[Network]\n{body}"
        for name, text in files.items():
            path = upper / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for path, mode in [(upper / "root", 0o700), (upper / "root/.ssh", 0o700), (upper / "root/.ssh/authorized_keys", 0o600)]:
            path.chmod(mode)
        options = f"lowerdir={root},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, merged)
        # Its own BPF file system, which systemd mounts on a machine and cannot mount in a container.
        bpf = self.directory / "bpf"
        bpf.mkdir()
        run("mount", "-t", "bpf", "bpf", bpf)

    def boot(self):
        command = ["systemd-nspawn", "--quiet", "--boot", f"--directory={self.directory / 'merged'}", f"--machine={self.name}"]
        command += ["--register=no", "--keep-unit", "--console=read-only", "--link-journal=no", "--resolv-conf=off"]
        command.append(f"--bind={self.directory / 'bpf'}:/sys/fs/bpf")
        command += ["--timezone=off", "--system-call-filter=bpf perf_event_open pidfd_getfd kcmp", f"--capability={CAPABILITIES}"]
        for bridge, address in [("san", self.san), ("lan", self.lan)]:
            if address is not None:
                command.append(f"--network-veth-extra={bridge}-{self.name}:{bridge}0")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self.enter_control_group, start_new_session=True
            )

    def enter_control_group(self):
        """Puts the calling process into a control group of this host's own: systemd in it takes all of the group."""
        for hierarchy in pathlib.Path("/sys/fs/cgroup").iterdir():
            if hierarchy.name in ["unified", "systemd"]:
                group = hierarchy / self.control_group
                group.mkdir(parents=True, exist_ok=True)
                (group / "cgroup.procs").write_text("0\n", encoding="utf-8")

    def ssh(self, command, timeout=COMMAND_S, check=True, **options):
        """Runs a shell command on the host."""
        words = ["ssh", "-F", str(self.ssh_config), self.name, command]
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, start_new_session=True, **options)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.name}: {command}: no end within {timeout} s") from error
        if check and done.returncode:
            raise Failed(f"{self.name}: {command}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def wait_booted(self, old_boot=""):
        """Waits until the host answers with another boot than `old_boot`, and its start has ended. Returns its boot."""
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if self.process.poll() == EXIT_REBOOT:
                self.boot()
            elif self.process.poll() is not None:
                raise Failed(f"{self.name} ended with status {self.process.returncode}; see {self.log}")
            try:
                state = self.ssh(BOOT_QUESTION, timeout=10, check=False).stdout.split()
            except Failed:
                continue
            if len(state) == 2 and state[0] != old_boot and state[1] in ["running", "degraded"]:
                return state[0]
            time.sleep(0.3)
        raise Failed(f"{self.name} has not booted within {BOOT_S} s; see {self.log}")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()


# When PID 1 started tells boots apart: the kernel's boot id is the machine's.
BOOT_QUESTION = "cut -d ' ' -f 22 /proc/1/stat; systemctl is-system-running"
