"""Numbers of a coordinator's transactions: an id policy, chosen when the coordinator is made.

The lower id bits (`least`) are one ascending sequence of the coordinator under both policies. Policies differ in the upper bits
(`most`), and in the low watermark that goes to participants with an end.

|                | `PulsarIds`                                    | `LaneIds`                                             |
|----------------|------------------------------------------------|-------------------------------------------------------|
| `most`         | the coordinator's number, as clients expect it | bit 62, the number in bits 48-61, a lane below: its   |
|                |                                                | service in 20-47, a count in 0-19 (`log_incarnations`) |
| first `least`  | 0, or what is configured                       | 1, because a watermark of 0 would cover 0             |
| watermark      | everything up to here has ended                | the own `least`: nothing else is open in its lane     |
| for            | our own broker, which asks the coordinator     | stock participants, which compare watermarks only     |
|                | before it lets a late message in               |                                                       |

See `lane_table` for the life of a lane, and `docs/adr/0031` for the decision.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from pulsar_txn.wire.ids import GROUP_SHIFT, LANE_BIT

LANE_BITS: Final = GROUP_SHIFT
_COORDINATORS: Final = 1 << 14
"""Coordinators that have room beside a lane, below bit 62. Bit 63 stays clear, because Java reads it as a sign."""


@attrs.frozen
class PulsarIds:
    """Pulsar's own numbers: what every coordinator of a broker has.

    `first_least`: where they begin. Unchanged clients beside a cluster need numbers that no coordinator of its brokers ever
    gave out. It may be raised later; numbers that were given out already are never given again.
    """

    first_least: int = 0


@attrs.frozen
class LaneIds:
    """One lane per transaction at a time, for participants that fence by their watermark alone.

    `lease_ms`: how long an incarnation of a client counts as alive after it opened a transaction or renewed its lease.
    `max_lanes`: how many lanes the coordinator keeps, busy or idle, at about 1 KiB each. `max_lanes_of_incarnation`: how many
    transactions one incarnation may have open at the same time.
    """

    lease_ms: int = 30_000
    max_lanes: int = 100_000
    max_lanes_of_incarnation: int = 10_240


IdPolicy: TypeAlias = PulsarIds | LaneIds


def most_of_lane(tc_id: int, lane: int) -> int:
    """The upper id bits of a transaction of the coordinator `tc_id` in a lane."""
    return LANE_BIT | tc_id << LANE_BITS | lane


def has_lane(most: int) -> bool:
    """True if `most_of_lane` has made these upper id bits."""
    return bool(most & LANE_BIT)


def lane_of(most: int) -> int:
    """The lane of upper id bits that `most_of_lane` has made."""
    return most & (1 << LANE_BITS) - 1


def numbering(tc_id: int, policy: IdPolicy) -> tuple[int, int]:
    """(shift, number): all upper id bits of this coordinator, shifted to the right, are the number."""
    if isinstance(policy, PulsarIds):
        return 0, tc_id
    return LANE_BITS, most_of_lane(tc_id, 0) >> LANE_BITS


def check_number(tc_id: int) -> None:
    """Raise ValueError for a coordinator's number that has no room beside a lane."""
    if not 0 <= tc_id < _COORDINATORS:
        raise ValueError(f"coordinator {tc_id} cannot give lanes: its number must be from 0 to {_COORDINATORS - 1}")
