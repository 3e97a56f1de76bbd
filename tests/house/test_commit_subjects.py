"""The subject of the newest commit has at most 72 characters and no full stop at the end.

Only the newest one: a shallow clone has no other, and an older one cannot be changed any more.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
LONGEST = 72


def is_fit(subject: str) -> bool:
    return 0 < len(subject) <= LONGEST and not subject.endswith(".")


def test_the_subject_of_the_newest_commit_is_short() -> None:
    command = ["git", "log", "-1", "--no-merges", "--format=%s"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
    if not (CHECKOUT / ".git").exists() or done.returncode or not done.stdout.strip():
        pytest.skip("not a git checkout")
    assert is_fit(done.stdout.strip()), f"{done.stdout.strip()!r}: shorten it to {LONGEST} characters with git commit --amend"


def test_a_long_subject_and_a_full_stop_are_found() -> None:
    assert [is_fit(subject) for subject in ("Fits", "x" * 72, "x" * 73, "Ends with a stop.")] == [True, True, False, False]
