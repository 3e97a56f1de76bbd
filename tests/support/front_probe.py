"""Unchanged Java programs through the front: `FrontProbe.java` as a process, and what its stories have to say."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from other_languages import java_program

_PROBE: Final = Path(__file__).with_name("FrontProbe.java")
_FIRST: Final = 1 << 40


@asynccontextmanager
async def probe(
    version: str, *arguments: str, let_in: Mapping[str, str] | None = None, program: Path = _PROBE
) -> AsyncIterator[asyncio.StreamReader]:
    """A run of a probe; its output. `let_in`: PROBE_TOKEN and PROBE_TRUST, where clients have to say who they are."""
    command = await asyncio.to_thread(java_program, program, version)
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=1 << 20,
        env={**os.environ, **(let_in or {})},
    )
    try:
        assert process.stdout is not None
        yield process.stdout
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """What the probe says, without the client's own log."""
    async for line in output:
        if line.startswith(b"> "):
            yield line[2:].decode().strip()


def check_stories(lines: Sequence[str], coordinators: int) -> None:
    """What `stories` has to say."""
    ids = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("id ")]
    assert all(0 <= most < coordinators and least >= _FIRST for most, least in ids)
    assert len(set(ids)) == 2
    assert lines[2:] == [
        "open",
        "conflict TransactionConflictException",
        "commit done",
        "abort done",
        "committed commit 0,commit 1,commit 2",
        "again in 1",
        "after a timeout plain",
        "commit of it InvalidTxnStatusException",
        "many 75",
    ]
