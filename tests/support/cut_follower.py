"""A program that follows topics with a consistent reader, and can be killed at any time.

    python cut_follower.py URL OUTPUT TOPIC [TOPIC ...]

Each cut becomes one line of OUTPUT, with its messages and its position together, as docs/how-to/consistent-reading.md says. The
program goes on after the last whole line. It ends with 3 when a server was away for too long, which is no fault.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import attrs

from pulsar_txn.client import EARLIEST_ID, AsyncClient, MessageId, PulsarError
from pulsar_txn.client.cuts import CutPosition

AWAY = 3


@attrs.frozen
class KeptCut:
    """A line of the output: `[partition, value]` of each message, and the position after them."""

    messages: list[tuple[str, str]]
    position: str


def kept_cuts(output: Path) -> list[KeptCut]:
    """The whole lines; the last one may be torn."""
    lines = [json.loads(line) for line in _whole_lines(output)]
    return [KeptCut([(topic, value) for topic, value in line["messages"]], line["position"]) for line in lines]


def _whole_lines(output: Path) -> list[bytes]:
    return output.read_bytes().split(b"\n")[:-1] if output.exists() else []


def _last_position(output: Path) -> MessageId | CutPosition:
    """Where to go on; what was being written when the program was killed is dropped."""
    lines = _whole_lines(output)
    with output.open("ab") as file:
        file.truncate(sum(map(len, lines)) + len(lines))
    return CutPosition.parse(json.loads(lines[-1])["position"]) if lines else EARLIEST_ID


async def _follow(service_url: str, output: Path, topics: list[str]) -> None:
    start = _last_position(output)
    with output.open("ab", buffering=0) as file:
        async with (
            AsyncClient(service_url, max_backoff=0.5) as client,
            await client.consistent_reader(topics, start) as reader,
        ):
            async for cut in reader:
                messages: list[Any] = [(message.topic, message.data.decode()) for message in cut]
                line = json.dumps({"messages": messages, "position": cut.position.text()}).encode() + b"\n"
                file.write(line)


def main() -> None:
    """Follow until it is killed."""
    service_url, output, *topics = sys.argv[1:]
    try:
        asyncio.run(_follow(service_url, Path(output), topics))
    except PulsarError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(AWAY if error.retriable else 1)


if __name__ == "__main__":
    main()
