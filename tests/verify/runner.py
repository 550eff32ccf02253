"""Runs one target: bounded in time and output, and with nothing left running afterwards."""

import ctypes
import datetime
import mmap
import os
import pathlib
import re
import signal
import subprocess
import time

from results import Result, Tree

# A line by which a target reports what it did not check.
SKIPPED = re.compile(rb"SKIPPED\b[^\r\n]*")
# make's last line if a recipe ended with EX_UNAVAILABLE: the machine lacks what the target needs.
UNAVAILABLE = re.compile(r"^make.*\*\*\* .* Error 69$")
SKIPPED_KEPT, TAIL_LINES, TAIL_BYTES, LINE_CHARS = 20, 8, 16384, 300
OUTPUT_BYTES_MAX = int(os.environ.get("VERIFY_OUTPUT_BYTES_MAX", 1 << 30))
GRACE_S, POLL_S = 3, 0.2
# Seconds for each fuzz target; `make fuzz` alone takes 60.
FUZZ_SECONDS = "10"
# What make hands to a recipe and a nested make must not take for its own, and this program's own variables.
NOT_INHERITED = ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BENCH", "VERIFY"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

libc = ctypes.CDLL(None, use_errno=True)


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP."""


class Runner:
    def __init__(self, project, directory):
        """Orphans among the descendants become children of this process, so that all of them can be found."""
        self.project, self.directory = project, directory
        self.environment = {"FUZZ_SECONDS": FUZZ_SECONDS} | {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in SIGNALS:
            # nohup ignores SIGHUP.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, interrupt)

    def log(self, target):
        return self.directory / f"{target}.log"

    def name(self, target):
        """Returns the path of the output, from the project on if it is inside."""
        log = self.log(target)
        return str(log.relative_to(self.project) if log.is_relative_to(self.project) else log)

    def run(self, target, seconds_max):
        """Returns the result. An interruption ends the target and raises `Interrupted`."""
        tree, begun = Tree.of(self.project), time.monotonic()
        with open(self.log(target), "wb") as output:
            try:
                child = subprocess.Popen(
                    ["make", "--no-print-directory", target], cwd=self.project, env=self.environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=end_with_parent,
                )  # fmt: skip
                status, stopped = self.wait(child, output, begun + seconds_max)
            finally:
                left = end_descendants()
            output.write(stopped)
        seconds = time.monotonic() - begun
        skipped, count, tail = read(self.log(target))
        return Result(
            target=target, commit=tree.commit, contents=tree.contents, dirty=tree.dirty or Tree.of(self.project).contents != tree.contents,
            outcome=outcome(status, count, tail), status=status, seconds=round(seconds, 1),
            ended=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            skipped=skipped, skipped_count=count, tail=tail, left=left if status is not None else [], log=self.name(target),
        )  # fmt: skip

    def wait(self, child, output, deadline):
        """Returns the exit status, or None and why the target is stopped."""
        while True:
            try:
                return child.wait(timeout=POLL_S), b""
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > deadline:
                return None, b"\nverify: stopped by the bound in time\n"
            if os.fstat(output.fileno()).st_size > OUTPUT_BYTES_MAX:
                return None, b"\nverify: stopped by the bound of its output\n"


def interrupt(_number, _frame):
    """Raises once; the target is then ended without a further interruption."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted


def end_with_parent():
    """Runs in the child: make ends, and ends its recipe, when this program is killed."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def outcome(status, skipped, tail):
    if status is None:
        return "stopped"
    if status and not any(UNAVAILABLE.match(line) for line in tail):
        return "failed"
    return "skipped" if status or skipped else "passed"


def read(log):
    """Returns what the target skipped (the first lines, and how many) and its last lines."""
    with open(log, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return [], 0, []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as output:
            skipped, count = [], 0
            for found in SKIPPED.finditer(output):
                if found.start() and not output[found.start() - 1 : found.start()].isspace():
                    continue
                count += 1
                if len(skipped) < SKIPPED_KEPT and (line := text(found[0])) not in skipped:
                    skipped.append(line)
            lines = map(text, output[-TAIL_BYTES:].splitlines())
            return skipped, count, [line for line in lines if line][-TAIL_LINES:]


def text(line):
    return line.decode(errors="replace").rstrip()[:LINE_CHARS]


def end_descendants():
    """Ends every descendant of this process, whatever its session or process group. Returns their names."""
    found, begun = {}, time.monotonic()
    while processes := descendants():
        found |= processes
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL if time.monotonic() - begun > GRACE_S else signal.SIGTERM)
            except ProcessLookupError:
                pass
        time.sleep(POLL_S / 4)
    return sorted(set(found.values()))


def descendants():
    """Returns the names of the processes that descend from this one, by their ids; reaps those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return {}
    parents, names = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            before, after = path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)
        except OSError:
            continue
        pid = int(before.split(" ", 1)[0])
        parents[pid], names[pid] = int(after.split()[1]), before.split("(", 1)[1]
    return {pid: names[pid] for pid in parents if descends(pid, parents)}


def descends(pid, parents):
    while (pid := parents.get(pid, 0)) > 1:
        if pid == os.getpid():
            return True
    return False
