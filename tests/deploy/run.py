#!/usr/bin/env python3
"""Installs a CSP cluster on booted hosts with the Ansible collection, and drives it: `make test-deploy`.

The hosts are systemd-nspawn containers with an own systemd each, on two bridges. All of it lives in network, mount and process
namespaces of this program's own, which end with it; the machine's network, firewall and clock are not touched.
"""

import argparse
import fcntl
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import edge
import faults
import identities
import root
import scenario
import servers
import steps
import supplied
import takeover
import upgrades
from cluster import Cluster
from transcript import Failed, Transcript

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
CACHE = pathlib.Path("/var/tmp/csp-deploy")
# What hosts boot. Packages run on the release that they were built on and on later ones.
RELEASES = ["bookworm", "trixie"]
# The whole run on a machine of two processors; a step has its own, shorter bound.
RUN_MINUTES = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debs", type=pathlib.Path, default=PROJECT / "target/deb", help="directory of the packages")
    parser.add_argument("--ansible", default=os.environ.get("ANSIBLE_PLAYBOOK", "ansible-playbook"), help="ansible-playbook")
    parser.add_argument("--steps", default="", help="only these steps, by comma; boot and site always run")
    parser.add_argument("--suite", default=suites()[0], choices=suites(), help="release of Debian that the hosts boot (this machine's)")
    parser.add_argument("--minutes", type=int, default=RUN_MINUTES, help="bound of the whole run, for machines that do other things beside")
    parser.add_argument("--keep", action="store_true", help="leave the hosts running; run the steps that standard input names")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def suites():
    """Returns the release of this machine and those after it."""
    with open("/etc/os-release", encoding="utf-8") as file:
        own = dict(line.rstrip().split("=", 1) for line in file if "=" in line).get("VERSION_CODENAME", RELEASES[-1])
    return RELEASES[RELEASES.index(own) :] if own in RELEASES else RELEASES[-1:]


def missing(args):
    """Returns why this machine cannot run the test, or nothing."""
    if os.geteuid() != 0:
        return "root is needed: hosts are booted, namespaces made"
    for program in ["systemd-nspawn", "mmdebstrap", "unshare", "ip", "ssh", "ssh-keygen", "dpkg-deb", args.ansible]:
        if not shutil.which(program):
            return f"{program} is not installed"
    if not list(args.debs.glob("*.deb")):
        return f"{args.debs} has no packages; `make deb` builds them"
    return None


def outside(args):
    """Prepares what needs the machine's network, then runs this program again in namespaces of its own."""
    reason = missing(args)
    if reason:
        print(f"test-deploy: {reason}", file=sys.stderr)
        return 1
    CACHE.mkdir(mode=0o755, exist_ok=True)
    with open(CACHE / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("test-deploy: another run is under way", file=sys.stderr)
            return 1
        for stale in CACHE.glob("run-*"):
            shutil.rmtree(stale)
        return prepared(args)


def prepared(args):
    directory = CACHE / f"run-{os.getpid()}"
    directory.mkdir(mode=0o700)
    try:
        booted = root.build(CACHE, args.debs, args.suite)
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, __file__]
        command += ["--inside", directory, "--root", booted, "--debs", args.debs.resolve(), "--ansible", shutil.which(args.ansible)]
        command += ["--steps", args.steps] + (["--keep"] if args.keep else [])
        timeout = None if args.keep else args.minutes * 60
        return subprocess.run([str(word) for word in command], timeout=timeout, check=False).returncode
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"test-deploy: {error}", file=sys.stderr)
        return 1
    finally:
        if args.keep:
            print(f"logs: {directory}")
        else:
            keep_logs(directory)
        remove_cgroups(f"csp-deploy-{directory.name}")


def keep_logs(directory):
    """Moves the logs of this run to CACHE/logs and removes the rest."""
    logs = CACHE / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    if (directory / "logs").is_dir():
        shutil.move(directory / "logs", logs)
        print(f"logs: {logs}")
    shutil.rmtree(directory, ignore_errors=True)


def remove_cgroups(name):
    """Removes the control groups of the hosts, which are empty once their namespaces have ended."""
    deadline = time.monotonic() + 10
    for hierarchy in pathlib.Path("/sys/fs/cgroup").glob("*"):
        while (hierarchy / name).is_dir():
            for path, _, _ in os.walk(hierarchy / name, topdown=False):
                try:
                    os.rmdir(path)
                except OSError:
                    pass
            if time.monotonic() > deadline:
                print(f"test-deploy: {hierarchy / name} cannot be removed", file=sys.stderr)
                break
            time.sleep(0.2)


def inside(args):
    transcript = Transcript()
    cluster = Cluster(args.inside, args.root, args.debs, args.ansible)
    try:
        scenario.run(cluster, transcript, [step for step in args.steps.split(",") if step])
    except Failed as error:
        transcript.failure(error)
    if transcript.failed:
        cluster.save_journals()
    if args.keep:
        print(f"\nThe hosts run until the input ends. Look around from another terminal:\n{cluster.how_to_enter()}")
        print("Names of steps, by comma, run these steps as they are now in the files.")
        again(cluster, transcript)
    cluster.stop()
    return transcript.summary()


def again(cluster, transcript):
    """Runs the steps that are named on the lines of standard input, by present code and collection."""
    try:
        for line in sys.stdin:
            for module in [steps, edge, faults, identities, servers, supplied, takeover, upgrades, scenario]:
                importlib.reload(module)
            cluster.copy_collection()
            cluster.write_inventory()
            try:
                scenario.run_steps(cluster, transcript, [step for step in line.strip().split(",") if step])
            except Failed as error:
                transcript.failure(error)
    except KeyboardInterrupt:
        pass


def main():
    args = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    return inside(args) if args.inside else outside(args)


if __name__ == "__main__":
    sys.exit(main())
