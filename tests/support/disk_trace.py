"""The calls that real processes made on real files, and what a power loss between any two of them would have left.

`disk_trace.c` is preloaded into the process and its sync helpers and writes every call down, with its bytes. `Replay`
carries the calls out on `SimulatedFiles`, whose rules about what is durable are then applied to what the real layer did.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulated_files import SimulatedFiles
from targets import lacking

CREATE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK = range(1, 8)
FOLDER_INODE = 0
_HEAD = struct.Struct("<IiQQII")


class Call(NamedTuple):
    """One call; `path` and `data` as its kind has them (of RENAME, `data` is the new path)."""

    kind: int
    result: int
    inode: int
    offset: int
    path: str
    data: bytes


def build(folder: Path) -> Path:
    """The library, compiled; skips the test, or fails it where that is required, when there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        lacking("cc", "there is no C compiler; apt-get install gcc libc6-dev")
    library = folder / "disk_trace.so"
    source = Path(__file__).with_suffix(".c")
    command = [str(compiler), "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def environment(library: Path, traced: Path, trace: Path, *, fail_sync: int | None = None) -> dict[str, str]:
    """What a process needs to be traced, and to import what this one does; `fail_sync`: the Nth sync of each fails."""
    found = os.environ | {"LD_PRELOAD": str(library), "DISK_TRACE_FOLDER": str(traced), "DISK_TRACE_FILE": str(trace)}
    found["PYTHONPATH"] = os.pathsep.join(sys.path)
    return found if fail_sync is None else found | {"DISK_TRACE_FAIL_SYNC": str(fail_sync)}


def calls(trace: Path) -> Iterator[Call]:
    """All calls, in their order."""
    data, at = trace.read_bytes(), 0
    while at < len(data):
        kind, result, inode, offset, path_length, data_length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        path = data[at : at + path_length].decode()
        at += path_length
        yield Call(kind, result, inode, offset, path, data[at : at + data_length])
        at += data_length


class Replay:
    """The disk after some calls. `files` knows what is durable."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self._by_inode: dict[int, object] = {}
        self._syncing: dict[int, dict[int, bytes]] = {}

    def apply(self, call: Call) -> None:
        """One call more."""
        files = self.files
        if call.kind == CREATE:
            self._create(call)
        elif call.kind == WRITE:
            self._by_inode[call.inode].write(call.data, call.offset)
        elif call.kind == TRUNCATE:
            file = self._by_inode[call.inode]
            file.content = file.content[: call.offset] + bytes(max(0, call.offset - len(file.content)))
        elif call.kind == RENAME:
            files.rename(call.path, call.data.decode())
        elif call.kind == UNLINK:
            files.unlink(call.path)
        elif call.inode == FOLDER_INODE:
            if call.kind == SYNC_END and not call.result:
                files.sync_names()
        elif call.kind == SYNC_BEGIN:
            self._by_inode[call.inode].begin_sync()
        elif call.result:
            self._by_inode[call.inode].fail_sync()
        else:
            self._by_inode[call.inode].end_sync()

    def _create(self, call: Call) -> None:
        if call.path in self.files.files and not call.result:
            return
        self.files.close(self.files.open(call.path, create=True))
        self._by_inode[call.inode] = self.files.files[call.path]
