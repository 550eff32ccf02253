#!/usr/bin/env python3
"""Runs every target of the Makefile that checks something, one after another: `make verify`.

A result belongs to the contents of the tree. A run that was interrupted is continued by the same command: targets that have a
result for these contents are not run again. Results and outputs are in target/verify; the table is written to docs/notes/verified.md.
"""

import argparse
import difflib
import fcntl
import json
import os
import pathlib
import signal
import sys

import report
from results import Results, Tree
from runner import Interrupted, Runner

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = """
examples:
  make verify                                   run what has no result for this tree
  make verify BENCH=1                           the benchmarks, too (an idle machine)
  make verify VERIFY="--list"                   show targets, bounds and results, and run nothing
  make verify VERIFY="--only demo,test-capi"    two targets
  make verify VERIFY="--skip test-deploy"       all but one
  make verify VERIFY="--again failed"           run once more what failed
  make verify SEEDS=100 FUZZ_SECONDS=5          variables reach the targets

exit status: 0 if all passed or were skipped, 1 if a target failed or was stopped by a bound, 2 for wrong arguments, 130 if interrupted
"""


def arguments(words):
    parser = argparse.ArgumentParser(
        prog="verify", description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show targets, bounds and results, and run nothing")
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help="only these targets, by comma")
    parser.add_argument("--skip", type=names, default=[], metavar="NAMES", help="all but these targets, by comma")
    parser.add_argument("--again", type=names, default=[], metavar="NAMES", help="run these although they have a result; `failed`: all that failed")
    parser.add_argument("--bench", action="store_true", help="run the benchmarks, too")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR", help="multiply the bounds in time, for a slow machine")
    parser.add_argument("--output", choices=["table", "json"], default="table", help="how results are printed on standard output")
    parser.add_argument("--project", type=pathlib.Path, default=PROJECT, help=argparse.SUPPRESS)
    return parser, parser.parse_args(words)


def names(text):
    return [name for name in text.replace(",", " ").split() if name]


def bounds(project):
    """Returns the bound of each target in minutes, in the order in which targets run; 0 for targets that are not run."""
    lines = (project / "tests/verify/targets.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return {target: float(minutes) for target, minutes in words}


def selected(args, known):
    """Returns the targets to look at, in order."""
    wanted = [target for target, minutes in known.items() if minutes and (args.bench or not target.startswith("bench"))]
    if args.only:
        wanted = args.only
    return [target for target in known if target in wanted + args.again and target not in args.skip]


def unknown(args, known):
    """Returns what is wrong with the names in the arguments, or nothing."""
    for name in [*args.only, *args.skip, *(name for name in args.again if name != "failed")]:
        if not known.get(name):
            nearest = difflib.get_close_matches(name, [target for target, minutes in known.items() if minutes], 1)
            hint = f"; the nearest is {nearest[0]}" if nearest else ""
            return f"there is no target {name} in tests/verify/targets.txt{hint}"
    return None


def due(args, results, targets, tree):
    """Returns the targets that have no result for this tree, and those that are asked for again."""
    forced = set(args.again)
    if "failed" in forced:
        forced |= {target for target in targets if results.of(target) and results.of(target).failed}
    return [target for target in targets if target in forced or not results.current(target, tree)]


def run(args, results, targets, known):
    """Runs what is due. Returns whether it was interrupted."""
    runner = Runner(args.project, results.directory)
    try:
        for target in due(args, results, targets, Tree.of(args.project)):
            minutes = known[target] * args.patience
            print(f"  … {target}, at most {minutes:.0f} minutes: {runner.name(target)}", file=sys.stderr, flush=True)
            result = runner.run(target, minutes * 60)
            results.keep(result)
            print(f"  {report.SIGNS[result.outcome]} {target}: {report.outcome(result)} ({result.seconds / 60:.1f} min)", file=sys.stderr, flush=True)
    except Interrupted:
        print("verify: interrupted; `make verify` continues", file=sys.stderr)
        return True
    return False


def main(words):
    parser, args = arguments(words)
    args.project = args.project.resolve()
    known = bounds(args.project)
    wrong = unknown(args, known)
    if wrong:
        parser.error(wrong)
    directory = args.project / os.environ.get("CARGO_TARGET_DIR", "target") / "verify"
    directory.mkdir(parents=True, exist_ok=True)
    results, targets = Results(directory), selected(args, known)
    if args.list:
        print(report.listing(results, {target: known[target] * args.patience for target in targets}, Tree.of(args.project)))
        return 0
    with open(directory / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"verify: another run holds {directory}/lock", file=sys.stderr)
            return 1
        interrupted = run(args, results, targets, known)
        tree = Tree.of(args.project)
        report.write(args.project / "docs/notes/verified.md", results, known)
    if args.output == "json":
        print(json.dumps(report.document(results, targets, tree), indent=2))
    else:
        print(report.table(results, targets, tree))
    if interrupted:
        return 128 + signal.SIGINT
    return 1 if any(results.of(target) and results.of(target).failed for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
