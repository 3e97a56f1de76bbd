"""Knowledge of the service about its transactions beside their state: their timelines, and the ends to be told once more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from pulsar_txn.broker.serving import Turn
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.ends import NO_WATERMARK
from pulsar_txn.tc_service.cluster.participants import encode
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnAction, TxnId

from .clusters import Clusters
from .recent_ends import End
from .stories import Story
from .timelines import Ended, Timeline, Timelines

FRONT: Final = "front"
"""The name of the coordinators for unchanged clients, beside those that give lanes."""

_MOST_TOUCHED: Final = 10_000


class Following:
    """Follows all coordinators of a service. `lanes`: those of our clients; `front`: those of unchanged ones.

    `most`: see `Ended`; `repeat_delay_ms`: see `RecentEnds`.
    """

    def __init__(self, clusters: Clusters, turn: Turn, *, most: int, repeat_delay_ms: int) -> None:
        ended, seconds = Ended(most), turn.runtime.monotonic
        self.lanes = Timelines(ended, repeat_delay_ms, seconds, self._repeat)
        self.front = Timelines(ended, repeat_delay_ms, seconds, self._repeat)
        self.touched: OrderedDict[tuple[str, str, str | None], int] = OrderedDict()
        """Participants (cluster, topic, subscription), and when they were told last: the newest are at the end."""
        self.watch: Callable[[str, TellParticipant], None] = lambda _cluster, _effect: None
        """Called with each participant that holds its outcome, and its cluster."""
        self._clusters = clusters
        self._turn = turn
        clusters.watch(self._told)

    def story(self, txn_id: TxnId) -> Story | None:
        """Return what is known of a transaction; None for nothing."""
        return self._of(txn_id).story(txn_id)

    def ended_at(self, cluster: str, participant: Participant) -> list[End]:
        """Transactions that have ended there, of those that are remembered."""
        named = encode(cluster, participant)
        found: list[End] = []
        for _, timeline in self.timelines():
            found += [end for end in timeline.ends() if (named.topic, named.subscription) in end.participants]
        return found

    def timelines(self) -> Iterator[tuple[str, Timeline]]:
        """Each with the number of its coordinator, as metrics name it."""
        for prefix, found in (("", self.lanes), (f"{FRONT}-", self.front)):
            for tc_id, timeline in sorted(found.of.items()):
                yield f"{prefix}{tc_id}", timeline

    def _of(self, txn_id: TxnId) -> Timelines:
        return self.lanes if txn_id.most & LANE_BIT else self.front

    def _told(self, cluster: str, effect: TellParticipant, attempts: int) -> None:
        now_ms, participant, txn_id = self._turn.clock.now_ms(), effect.participant, effect.txn_id
        (self.lanes if txn_id.most & LANE_BIT else self.front).told(txn_id, cluster, participant, attempts, now_ms)
        self.watch(cluster, effect)
        key = (cluster, participant.topic, participant.subscription)
        self.touched[key] = now_ms
        self.touched.move_to_end(key)
        if len(self.touched) > _MOST_TOUCHED:
            self.touched.popitem(last=False)

    def _repeat(self, end: End, due_ms: int) -> None:
        """A process before this one may have told this once only."""
        action = TxnAction.COMMIT if end.is_commit else TxnAction.ABORT
        seconds = max(0, due_ms - self._turn.clock.now_ms()) / 1000
        for topic, subscription in end.participants:
            effect = TellParticipant(end.txn_id, Participant(topic, subscription), action, NO_WATERMARK)
            self._clusters.repeat(effect, seconds)
