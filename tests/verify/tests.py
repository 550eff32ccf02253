#!/usr/bin/env python3
"""Tests of verify.py: projects of their own, whose targets pass, fail, skip, hang and are interrupted."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
# Each target appends its name to the file RUNS, which is outside the tree.
MAKEFILE = """
pass fail skip lacks hang flood leave slow bench-a:
	@echo $@ >> $(RUNS); sh targets/$@.sh
"""
SCRIPTS = {
    "pass": "echo all is well",
    "fail": "echo the reason; exit 7",
    "skip": "printf 'test a ... SKIPPED: needs a device\\nSKIPPED: needs root\\n'",
    "lacks": "echo SKIPPED lacks: needs a compiler; exit 69",
    # Children that ignore the signal and have a session of their own.
    "hang": "trap '' TERM; setsid sleep 1000.5 & sleep 1000.5",
    "flood": "yes | head --bytes 3000000; sleep 1000.5",
    # It ends when what it leaves has become what it is asked for by name.
    "leave": "setsid sleep 1000.25 > /dev/null & until grep -qx sleep /proc/$!/comm; do sleep 0.01; done",
    "slow": 'touch "$RUNS.started"; [ -e "$RUNS.fast" ] || sleep 1000.75',
    "bench-a": "echo fast",
}
BOUNDS = "# a comment\npass 1\nfail 1\nskip 1\nlacks 1\nhang 0.02\nflood 1\nleave 1\nslow 1\nbench-a 1\n"
LIMIT_S = 60


class Fake:
    """A project in a repository of its own."""

    def __init__(self, directory):
        self.path, self.runs = directory / "project", directory / "runs"
        (self.path / "targets").mkdir(parents=True)
        (self.path / "tests/verify").mkdir(parents=True)
        self.write("Makefile", MAKEFILE)
        self.write("tests/verify/targets.txt", BOUNDS)
        self.write(".gitignore", "/target\n")
        for name, script in SCRIPTS.items():
            self.write(f"targets/{name}.sh", script + "\n")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name, text):
        (self.path / name).write_text(text, encoding="utf-8")

    def git(self, *words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        return subprocess.run(["git", *identity, *words], cwd=self.path, check=True, timeout=LIMIT_S, capture_output=True, text=True).stdout.strip()

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "state")

    def begin(self, *words):
        environment = os.environ | {"RUNS": str(self.runs), "VERIFY_OUTPUT_BYTES_MAX": "1000000"}
        environment.pop("CARGO_TARGET_DIR", None)
        command = [sys.executable, HERE / "verify.py", "--project", self.path, *words]
        # Whoever starts the tests may ignore SIGINT, which children inherit, and which verify.py then leaves ignored.
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def verify(self, *words):
        """Returns exit status, standard output and standard error."""
        with self.begin(*words) as child:
            output, errors = child.communicate(timeout=LIMIT_S)
        return child.returncode, output, errors

    def ran(self):
        """Returns the targets that ran since this was last called."""
        names = self.runs.read_text(encoding="utf-8").split() if self.runs.exists() else []
        self.runs.unlink(missing_ok=True)
        return names

    def page(self):
        return (self.path / "docs/notes/verified.md").read_text(encoding="utf-8")


def running(word):
    """Returns whether a process has `word` as an argument."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            pass
    return False


class Verify(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.fake = Fake(pathlib.Path(scratch.name))

    def test_outcomes(self):
        status, output, _ = self.fake.verify("--skip", "slow", "--output", "json")
        document = json.loads(output)
        results = {result["target"]: result for result in document["results"]}
        outcomes = {name: (result["outcome"], result["status"]) for name, result in results.items()}
        self.assertEqual(
            outcomes,
            {
                "pass": ("passed", 0),
                "fail": ("failed", 2),
                "skip": ("skipped", 0),
                "lacks": ("skipped", 2),
                "hang": ("stopped", None),
                "flood": ("stopped", None),
                "leave": ("passed", 0),
            },
        )
        self.assertEqual((status, document["not_run"], document["dirty"]), (1, [], False))
        self.assertEqual(results["skip"]["skipped"], ["SKIPPED: needs a device", "SKIPPED: needs root"])
        self.assertIn("the reason", results["fail"]["tail"])
        self.assertIn("verify: stopped by the bound in time", results["hang"]["tail"])
        self.assertIn("verify: stopped by the bound of its output", results["flood"]["tail"])
        self.assertIn("sleep", results["leave"]["left"])
        self.assertFalse(running("1000.5") or running("1000.25"))
        self.assertIn("all is well", (self.fake.path / results["pass"]["log"]).read_text())
        self.assertGreaterEqual(results["hang"]["seconds"], 1.2)

        commit, page = self.fake.git("rev-parse", "--short=12", "HEAD"), self.fake.page()
        self.assertTrue(all(result["commit"] == commit and not result["dirty"] for result in results.values()))
        for row in [f"| pass | {commit} | passed | 0.0 |", f"| fail | {commit} | failed, exit status 2 | 0.0 |", f"| skip | {commit} | skipped: 2 | 0.0 |"]:
            self.assertIn(row, page)
        self.assertIn("    the reason", page)

    def test_a_second_run_runs_what_has_no_result(self):
        self.assertEqual(self.fake.verify("--only", "fail,pass")[0], 1)
        self.assertEqual(self.fake.ran(), ["pass", "fail"])
        status, output, _ = self.fake.verify("--only", "skip,pass,fail")
        self.assertEqual((status, self.fake.ran()), (1, ["skip"]))
        self.assertEqual([line.split()[0] for line in output.splitlines()[:4]], ["target", "pass", "fail", "skip"])

        # A file that a crash cut off is no result.
        record = self.fake.path / "target/verify/pass.json"
        record.write_text(record.read_text()[:40])
        self.fake.verify("--only", "pass,skip")
        self.assertEqual(self.fake.ran(), ["pass"])

        self.fake.verify("--only", "pass,fail,skip", "--again", "failed")
        self.assertEqual(self.fake.ran(), ["fail"])
        self.fake.verify("--only", "pass,fail", "--again", "pass")
        self.assertEqual(self.fake.ran(), ["pass"])

    def test_results_belong_to_the_contents_of_the_tree(self):
        self.fake.verify("--only", "pass")
        before = self.fake.git("rev-parse", "--short=12", "HEAD")
        self.fake.commit()
        self.assertEqual(self.fake.git("show", "--name-only", "--format=", "HEAD"), "docs/notes/verified.md")
        self.fake.ran()
        self.assertEqual(self.fake.verify("--only", "pass")[0], 0)
        self.assertEqual(self.fake.ran(), [], "the page itself is no part of what was checked")

        self.fake.write("targets/pass.sh", "exit 1\n")
        self.assertEqual(self.fake.verify("--only", "pass")[0], 1)
        self.assertEqual(self.fake.ran(), ["pass"])
        now = self.fake.git("rev-parse", "--short=12", "HEAD")
        self.assertIn(f"| pass | {now}+ | failed", self.fake.page())
        self.fake.write("targets/pass.sh", SCRIPTS["pass"] + "\n")
        self.fake.write("new", "an untracked file\n")
        self.assertEqual(self.fake.verify("--only", "pass")[0], 0)
        self.assertEqual(self.fake.ran(), ["pass"])
        (self.fake.path / "new").unlink()
        self.fake.verify("--only", "pass")
        self.assertIn(f"| pass | {now} | passed", self.fake.page())
        self.assertNotEqual(before, now)
        self.assertEqual(self.fake.git("status", "--porcelain").split(), ["M", "docs/notes/verified.md"], "the index is not touched")

    def test_a_tree_that_changes_during_a_run_is_marked(self):
        self.fake.write("targets/pass.sh", "echo more >> file\n")
        self.fake.commit()
        self.fake.verify("--only", "pass")
        self.assertRegex(self.fake.page(), r"\| pass \| [0-9a-f]{12}\+ \| passed")

    def test_an_interrupted_run_is_continued(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.fake.begin("--only", "pass,slow,fail") as child:
                deadline = time.monotonic() + LIMIT_S
                while not (started := pathlib.Path(f"{self.fake.runs}.started")).exists():
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                started.unlink()
                # A second run beside it is refused.
                self.assertEqual(self.fake.verify("--only", "pass")[0], 1)
                child.send_signal(number)
                output, _ = child.communicate(timeout=LIMIT_S)
            self.assertEqual(child.returncode, 130)
            self.assertRegex(output, r"(?m)^slow +not run$")
            self.assertFalse(running("1000.75"))
        self.assertEqual(self.fake.ran(), ["pass", "fail", "slow", "slow"])
        self.assertNotIn("slow", self.fake.page())

        pathlib.Path(f"{self.fake.runs}.fast").touch()
        self.assertEqual(self.fake.verify("--only", "pass,slow,fail")[0], 1)
        self.assertEqual(self.fake.ran(), ["slow"])

    def test_benchmarks_run_on_request(self):
        _, output, _ = self.fake.verify("--list")
        self.assertEqual([line.split()[0] for line in output.splitlines()[1:]], [name for name in SCRIPTS if name != "bench-a"])
        _, output, _ = self.fake.verify("--list", "--bench", "--patience", "3")
        self.assertRegex(output, r"(?m)^bench-a +3 min +none; due$")
        self.assertEqual(self.fake.verify("--only", "bench-a")[0], 0)
        self.assertEqual(self.fake.ran(), ["bench-a"])

    def test_an_unknown_name_is_refused(self):
        status, _, errors = self.fake.verify("--only", "pas")
        self.assertEqual(status, 2)
        self.assertIn("the nearest is pass", errors)
        self.assertEqual(self.fake.ran(), [])


class Targets(unittest.TestCase):
    def test_every_target_that_checks_something_has_a_bound(self):
        makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
        named = set(re.findall(r"(?m)^((?:demo|test|bench|lint|deny|fuzz|evaluation)[a-z-]*):.*##", makefile))
        lines = (HERE / "targets.txt").read_text(encoding="utf-8").splitlines()
        bounded = [line.split()[0] for line in lines if line and not line.startswith("#")]
        self.assertEqual(sorted(named), sorted(bounded))


if __name__ == "__main__":
    unittest.main()
