"""An earlier commit of this project, whose broker and client run in processes of their own.

What it stored and what it sends are the fixtures of upgrades: no copy of them can be wrong. The code comes from the
repository's own history, so a clone without history cannot run these tests; they fail with a sentence then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

from our_broker import OurBroker

FEBDD5F: Final = "febdd5ff813a"
"""The last commit before acknowledgements had keys and coordinators had lives."""

ROOT: Final = Path(__file__).resolve().parents[2]
_CACHE: Final = ROOT / ".cache" / "earlier"
_ROOMS: Final = (
    "wire",
    "ledger",
    "tc",
    "rm_producer",
    "rm_pending_ack",
    "broker",
    "client",
    "tc_service",
    "compat",
    "pipeline",
)


def earlier_tree(commit: str = FEBDD5F) -> Path:
    """The folder with the rooms of `commit`. Raises RuntimeError where the clone lacks that commit."""
    tree = _CACHE / commit
    if tree.is_dir():
        return tree
    packed = subprocess.run(["git", "archive", commit, *_ROOMS, "conf"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        reason = packed.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"commit {commit} is not in this clone ({reason}): run `git fetch --unshallow`, then test again")
    _CACHE.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".unpacked-", dir=_CACHE))
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(made, filter="data")
    try:
        made.rename(tree)
    except OSError:  # another worker was first
        shutil.rmtree(made)
    return tree


def earlier_environment(commit: str = FEBDD5F) -> dict[str, str]:
    """The variables with which a Python process imports every room from `commit`."""
    tree = earlier_tree(commit)
    return {"PYTHONPATH": os.pathsep.join(str(tree / room) for room in _ROOMS)}


def earlier_broker(*, data_dir: Path | None = None, conf: Mapping[str, str] | None = None, commit: str = FEBDD5F) -> OurBroker:
    """The `pulsar-txn standalone` of `commit`, not started."""
    return OurBroker(data_dir=data_dir, conf=conf, environment=earlier_environment(commit))


def start_earlier(program: str, *arguments: str, commit: str = FEBDD5F) -> subprocess.Popen[str]:
    """A process that runs `program` (Python source) with the rooms of `commit`; its standard streams are pipes of text."""
    return _start(program, arguments, earlier_environment(commit))


def start_current(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `program` with the rooms of this tree, as `start_earlier` does with earlier ones."""
    return _start(program, arguments, {})


def run_earlier(program: str, *arguments: str, timeout: float = 60.0, commit: str = FEBDD5F) -> str:
    """What `program` prints when it runs with the rooms of `commit`. Raises CalledProcessError with its output."""
    process = start_earlier(program, *arguments, commit=commit)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [sys.executable, *arguments], out, err)
    return out


def _start(program: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
