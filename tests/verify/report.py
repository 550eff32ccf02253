"""How results are shown: a table on the terminal, a JSON document, and docs/notes/verified.md."""

import dataclasses
import os
import platform

SIGNS = {"passed": "✓", "skipped": "–", "failed": "✗", "stopped": "✗"}
HEAD = """# What was verified

`make verify` writes this file. It runs every target that checks something; each row is the last run of a target. A `+` behind a commit: files
differed from the commit, or changed during the run. *skipped*: the target failed in nothing and left out what this machine cannot run. *stopped*: the
target reached its bound in time or output.

"""


def outcome(result):
    """Returns the outcome in a few words."""
    if result.outcome == "failed":
        return f"failed, exit status {result.status}"
    if result.outcome == "skipped":
        return f"skipped: {result.skipped_count or 'all'}"
    return result.outcome


def commit(result):
    return result.commit + ("+" if result.dirty else "")


def row(result):
    return [result.target, commit(result), outcome(result), f"{result.seconds / 60:.1f}"]


def aligned(rows):
    """Returns lines whose columns are as wide as their widest cell."""
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip() for cells in rows)


def table(results, targets, tree):
    """Returns the table of the selected targets, and below it why targets failed or what they skipped."""
    rows, notes = [["target", "commit", "outcome", "minutes"]], []
    for target in targets:
        result = results.of(target)
        if not results.current(target, tree):
            rows.append([target, "", "not run" if result is None else f"not run; {outcome(result)} at {commit(result)}", ""])
            continue
        rows.append(row(result))
        notes += details(result, indent="    ")
    return "\n".join([aligned(rows), *notes])


def details(result, indent):
    """Returns lines about what a reader must look at, or none."""
    lines = []
    if result.failed:
        lines += [f"{result.target}, {outcome(result)}, {result.log}:", *(indent + line for line in result.tail)]
    if result.skipped:
        lines += [f"{result.target} skipped:", *(indent + line for line in result.skipped)]
    if result.left:
        lines += [f"{result.target} left processes running: {', '.join(result.left)}"]
    return lines


def listing(results, minutes, tree):
    """Returns every target with its bound and what is known of it."""
    rows = [["target", "bound", "last result"]]
    for target, bound in minutes.items():
        result = results.of(target)
        known = "none" if result is None else f"{outcome(result)} at {commit(result)}, {result.ended}"
        due = "" if results.current(target, tree) else "; due"
        rows.append([target, f"{bound:.0f} min", known + due])
    return aligned(rows)


def document(results, targets, tree):
    kept = [results.of(target) for target in targets if results.current(target, tree)]
    missing = [target for target in targets if not results.current(target, tree)]
    return {"commit": tree.commit, "dirty": tree.dirty, "results": [dataclasses.asdict(result) for result in kept], "not_run": missing}


def write(path, results, targets):
    """Writes the last result of each target, at whichever commit it ran."""
    kept = [result for result in map(results.of, targets) if result]
    if not kept:
        return
    lines = ["| target | commit | outcome | minutes |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row(result))} |" for result in kept]
    notes = [line for result in kept for line in details(result, indent="    ")]
    notes = ["", "```text", *notes, "```"] if notes else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + f"Machine: {system()}.\n\n" + "\n".join(lines + notes) + "\n", encoding="utf-8")


def system():
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "an unknown system")
    except OSError:
        name = "an unknown system"
    return f"{name}, Linux {platform.release()}, {os.cpu_count()} processors"
