"""The file systems that hosts share, read-only: a Debian of each release, made once and kept."""

import hashlib
import pathlib
import re
import subprocess

PACKAGES = """systemd systemd-sysv dbus udev openssh-server python3 python3-apt iproute2 nftables chrony nginx-light etcd-server
  etcd-client prometheus curl procps sudo iputils-ping libucx0 python3-zmq ca-certificates faketime""".split()
# Services that no host runs unless Ansible starts them.
DISABLED = "nginx etcd prometheus chrony prometheus-node-exporter systemd-timesyncd".split()
BUILD_S = 15 * 60

CUSTOMIZE = """
set -eu
root=$1
for unit in %s; do systemctl --root="$root" disable "$unit.service" > /dev/null 2>&1 || true; done
systemctl --root="$root" enable systemd-networkd.service ssh.service > /dev/null 2>&1
systemctl --root="$root" mask systemd-networkd-wait-online.service getty@.service console-getty.service \
  apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer logrotate.timer > /dev/null 2>&1
printf 'PermitRootLogin prohibit-password\\nPasswordAuthentication no\\nUseDNS no\\nMaxStartups 100\\n' > "$root/etc/ssh/sshd_config.d/test.conf"
rm -f "$root/etc/machine-id" "$root/etc/hostname"
rm -rf "$root/var/lib/etcd/default"
"""


def build(cache, debs, suite):
    """Returns the root directory of a release; makes it if there is none for these packages."""
    packages = sorted(set(PACKAGES) | dependencies(debs))
    script = CUSTOMIZE % " ".join(DISABLED)
    digest = hashlib.sha256("\n".join(packages + [script]).encode()).hexdigest()[:12]
    root = cache / f"root-{suite}-{digest}"
    if (root / "etc/ssh/sshd_config.d/test.conf").is_file():
        return root
    for old in [*cache.glob(f"root-{suite}-*"), *cache.glob("root-making")]:
        subprocess.run(["rm", "-rf", "--one-file-system", old], check=True, timeout=300)
    print(f"  … root of Debian {suite} with {len(packages)} packages")
    making = cache / "root-making"
    hook = cache / "customize.sh"
    hook.write_text(script, encoding="utf-8")
    command = ["mmdebstrap", "--variant=minbase", "--quiet", f"--include={','.join(packages)}"]
    command += [f"--customize-hook=sh {hook} \"$1\"", suite, str(making), "http://deb.debian.org/debian"]
    subprocess.run(command, check=True, timeout=BUILD_S)
    making.rename(root)
    return root


def dependencies(debs):
    """Returns the packages of Debian that the packages in `debs` depend on: the hosts cannot reach a mirror."""
    own, wanted = set(), set()
    for deb in pathlib.Path(debs).glob("*.deb"):
        own.add(field(deb, "Package"))
        for name in ["Depends", "Pre-Depends"]:
            for alternatives in field(deb, name).split(","):
                first = re.match(r"\s*([a-z0-9][a-z0-9+.-]+)", alternatives)
                wanted |= {first.group(1)} if first else set()
    return wanted - own - {"debconf"}


def field(deb, name):
    done = subprocess.run(["dpkg-deb", "--field", str(deb), name], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
