"""What the test prints: a line a step, with its time."""

import contextlib
import time


class Failed(Exception):
    """A step that failed: what was expected, and what was found."""


class Transcript:
    def __init__(self):
        self.failed = False
        self.begun = time.monotonic()

    @contextlib.contextmanager
    def step(self, text):
        """Prints `text` with its outcome and time when the block ends."""
        begun = time.monotonic()
        print(f"  … {text}")
        try:
            yield
        except Exception:
            print(f"  ✗ {text}  ({time.monotonic() - begun:.1f} s)")
            raise
        print(f"  ✓ {text}  ({time.monotonic() - begun:.1f} s)")

    def note(self, text):
        print(f"      {text}")

    def failure(self, error):
        self.failed = True
        print(f"    {error}")

    def summary(self):
        passed = "some step failed" if self.failed else "all steps passed"
        print(f"\n{'✗' if self.failed else '✓'} {passed}  ({time.monotonic() - self.begun:.0f} s)")
        return 1 if self.failed else 0
