"""Curing what was found: ends told to the participants that lack them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.attempts import RULES, Answer, AttemptResult, BrokerAttempts, pause_ms
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

from .cluster_reading import ClusterReader, Examination
from .findings import Cure, Finding, Status

_ATTEMPTS: Final = 6
_NO_WATERMARK: Final = -1
"""A higher mark would let the broker abort older transactions that are open there."""
_AT_ONCE: Final = 64
_WAITS: Final = 20


class NotCured(Exception):  # noqa: N818 - named by what happened
    """The cure did not work; the message says why."""


class Curing:
    """Cures of findings: tells participants their outcomes, and checks the effect."""

    def __init__(
        self,
        attempts: BrokerAttempts,
        reader: ClusterReader,
        examination: Examination,
        pause: Callable[[float], Awaitable[object]],
        search: int,
        suspects: Sequence[TxnId] = (),
    ) -> None:
        """`suspects`: transactions found elsewhere that no coordinator knows; a search begins with them."""
        self._attempts = attempts
        self._reader = reader
        self._examination = examination
        self._pause = pause
        self._search = search
        self._suspects = suspects

    async def cure(self, finding: Finding) -> str:
        """Do what the finding says; what was done. Raises NotCured."""
        if finding.cure is Cure.SEARCH:
            return await self._search_for(finding)
        assert finding.topic is not None  # noqa: S101 - cures are for topics
        assert finding.txn_id is not None  # noqa: S101 - and for transactions
        if finding.cure is Cure.ABORT and await self._reader.status(finding.txn_id) is not Status.NOT_KNOWN:
            raise NotCured(f"{finding.txn_id} has a coordinator by now: it is left alone")
        participant = Participant(finding.topic, finding.subscription)
        await self._tell(TellParticipant(finding.txn_id, participant, finding.cure.action, _NO_WATERMARK))
        if finding.subscription is None:
            await self._until_gone(finding.topic, finding.txn_id)
        if finding.cure is Cure.ABORT:
            return f"{finding.txn_id} was aborted"
        return f"the {finding.cure.action.name.lower()} of {finding.txn_id} was repeated"

    async def _tell(self, effect: TellParticipant) -> None:
        result = AttemptResult(Answer.SILENT)
        for failures in range(1, _ATTEMPTS + 1):
            result = await self._attempts.attempt(effect)
            if result.answer is Answer.OK:
                return
            if RULES[result.answer].alarm_after == 1:
                break
            await self._pause(pause_ms(result.answer, failures) / 1000)
        remedy = RULES[result.answer].remedy
        raise NotCured(f"the end was not taken: {result.answer.value} ({result.detail}); {remedy}")

    async def _until_gone(self, topic: str, txn_id: TxnId) -> None:
        """The broker has answered after it wrote the marker; it counts the transaction a moment longer."""
        for _ in range(_WAITS):
            if await self._reader.first_position(topic, txn_id) is None:
                return
            await self._pause(0.25)
        raise NotCured(f"the broker took the end of {txn_id}, and it is still ongoing there")

    async def _search_for(self, finding: Finding) -> str:
        """Abort the newest ids of each coordinator that have ended, until nothing is left that nobody knows."""
        assert finding.topic is not None  # noqa: S101 - pending acks are of a subscription
        assert finding.subscription is not None  # noqa: S101 - as above
        participant = Participant(finding.topic, finding.subscription)
        tried = 0
        async for part in self._candidates():
            tried += len(part)
            await self._abort_all(part, participant)
            if not await self._examination.unexplained(finding.topic, finding.subscription):
                return f"{tried} transactions were aborted there once more, and nothing unknown is left"
        raise NotCured(
            f"{tried} ended transactions were aborted there, and what is pending is of another one; try more with --search"
        )

    async def _candidates(self) -> AsyncIterator[list[TxnId]]:
        """Transactions that have ended, some at a time, the newest first."""
        if self._suspects:
            yield [txn_id for txn_id in self._suspects if await self._reader.status(txn_id) is Status.NOT_KNOWN]
        for number, last in [(each.number, each.last_id) for each in await self._reader.coordinators()]:
            open_now = await self._reader.known_to(number)  # after the last id was read: what is open of those is in here
            if open_now is None:
                continue
            ids = [TxnId(number, least) for least in range(last, max(last - self._search, -1), -1)]
            ended = [txn_id for txn_id in ids if txn_id not in open_now]
            for start in range(0, len(ended), _AT_ONCE):
                yield ended[start : start + _AT_ONCE]

    async def _abort_all(self, txn_ids: list[TxnId], participant: Participant) -> None:
        effects = [TellParticipant(txn_id, participant, TxnAction.ABORT, _NO_WATERMARK) for txn_id in txn_ids]
        await asyncio.gather(*map(self._tell, effects))
