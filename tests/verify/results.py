"""Results of targets, a file each, and the contents of the tree that they belong to."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

# What runs write themselves: it belongs to no contents.
RECORDS = ["docs/notes", "docs/plugins", "docs/quality"]
GIT_S = 60


@dataclasses.dataclass(frozen=True)
class Tree:
    """The tree at one time: its commit, an identity of its contents, and whether the contents differ from the commit's."""

    commit: str
    contents: str
    dirty: bool

    @staticmethod
    def of(project):
        """Reads the tree of `project` without changing its repository: index and new objects are temporary."""
        with tempfile.TemporaryDirectory() as scratch:
            objects = pathlib.Path(scratch) / "objects"
            objects.mkdir()
            own = git(project, "rev-parse", "--path-format=absolute", "--git-path", "objects")
            environment = {"GIT_OBJECT_DIRECTORY": str(objects), "GIT_ALTERNATE_OBJECT_DIRECTORIES": own}
            committed = contents(project, environment | {"GIT_INDEX_FILE": f"{scratch}/committed"}, ["read-tree", "HEAD"])
            index = git(project, "rev-parse", "--path-format=absolute", "--git-path", "index")
            if os.path.exists(index):
                shutil.copy(index, f"{scratch}/present")
            present = contents(project, environment | {"GIT_INDEX_FILE": f"{scratch}/present"}, ["add", "--all"])
        return Tree(git(project, "rev-parse", "--short=12", "HEAD"), present, present != committed)


def contents(project, environment, fill):
    """Returns the identity of the files that the command `fill` brings into an index, less `RECORDS`."""
    git(project, *fill, environment=environment)
    git(project, "rm", "-r", "--cached", "--force", "--quiet", "--ignore-unmatch", *RECORDS, environment=environment)
    return git(project, "write-tree", environment=environment)


def git(project, *words, environment=None):
    # The repository may be another user's than root's, who runs this.
    command = ["git", "-c", "safe.directory=*", "-C", str(project), *words]
    done = subprocess.run(command, env=os.environ | (environment or {}), timeout=GIT_S, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.strip()


@dataclasses.dataclass(frozen=True)
class Result:
    """How one run of a target ended. `outcome` is passed, skipped, failed or stopped (by a bound)."""

    target: str
    commit: str
    contents: str
    # Whether the tree differed from the commit, or changed during the run.
    dirty: bool
    outcome: str
    # Exit status of make; None if it was stopped.
    status: int | None
    seconds: float
    # Date and time of the end, UTC.
    ended: str
    # What was skipped, in the target's words; the first of many.
    skipped: list[str]
    skipped_count: int
    # Last lines of the output.
    tail: list[str]
    # Processes that the target left running, which were ended.
    left: list[str]
    log: str

    @property
    def failed(self):
        return self.outcome in ("failed", "stopped")


class Results:
    def __init__(self, directory):
        self.directory = directory

    def of(self, target):
        """Returns the last result of a target, or None. A file that cannot be read is no result."""
        try:
            return Result(**json.loads((self.directory / f"{target}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def current(self, target, tree):
        """Returns whether the last result of a target is one for the contents of `tree`."""
        result = self.of(target)
        return result is not None and result.contents == tree.contents

    def keep(self, result):
        """Stores a result. The file is replaced at once, so that an interruption leaves the old one or the new one."""
        path = self.directory / f"{result.target}.json"
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(dataclasses.asdict(result), indent=2) + "\n", encoding="utf-8")
        scratch.replace(path)
