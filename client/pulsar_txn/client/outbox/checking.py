"""What a member of the group answers when a coordinator asks for the outcome of a transaction."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pulsar_txn.client.errors import OutboxWrongDatabase
from pulsar_txn.client.outbox.block import KEY_BYTES, Key
from pulsar_txn.client.outbox.identity import IDENTITY_BYTES
from pulsar_txn.client.outbox.rows import Outcome
from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.outbox")

_WITHOUT_IDENTITY: Final = b"outbox1:"
"""Then 16 bytes of key. Written before there were identities; such transactions may still be prepared."""
_WITH_IDENTITY: Final = b"outbox2:"
"""Then 16 bytes of key and 16 of the database's identity."""
_ANSWERS: Final = {Outcome.COMMIT: LocalOutcome.COMMIT, Outcome.ABORT: LocalOutcome.ROLLBACK, None: LocalOutcome.UNKNOWN}


def check_data_of(key: Key) -> bytes:
    """What the coordinator keeps of a block for its check."""
    return _WITHOUT_IDENTITY + key.data if key.identity is None else _WITH_IDENTITY + key.data + bytes.fromhex(key.identity)


def key_of(data: bytes) -> Key | None:
    """The key in it; None for data of something else, or of a newer version."""
    version, rest = data[: len(_WITH_IDENTITY)], data[len(_WITH_IDENTITY) :]
    if version == _WITHOUT_IDENTITY and len(rest) == KEY_BYTES:
        return Key(rest)
    if version == _WITH_IDENTITY and len(rest) == KEY_BYTES + IDENTITY_BYTES:
        return Key(rest[:KEY_BYTES], rest[KEY_BYTES:].hex())
    return None


class Checking:
    """Answers for one outbox. `decide(key, txn_id)` asks the database; it may raise whatever a driver raises."""

    def __init__(self, decide: Callable[[Key, TxnId], Awaitable[Outcome | None]]) -> None:
        self._decide = decide
        self.in_hand: set[Key] = set()
        """Of the blocks of this process that have not been left yet: they decide themselves."""

    async def answer(self, question: CheckQuestion) -> LocalOutcome:
        """The outcome of a transaction of the group.

        An open one is not known: its COMMIT waits for PREPARE, so nothing has been decided, and its timeout ends it. Only for a
        prepared one a tombstone may be written: before PREPARE the program has not inserted the row yet.
        """
        key = key_of(question.data)
        if key is None:
            logger.error("a check of %s has data that no outbox of this version wrote", question.txn_id)
            return LocalOutcome.UNKNOWN
        if key in self.in_hand or not question.prepared:
            return LocalOutcome.UNKNOWN
        try:
            outcome = await self._decide(key, question.txn_id)
        except OutboxWrongDatabase as error:
            logger.warning("%s is not answered here, and nothing is written: %s", question.txn_id, error)
            return LocalOutcome.UNKNOWN
        except Exception as error:  # noqa: BLE001 - a driver's: a lock that is held, a database that is down
            logger.warning("%s cannot be checked now, and is asked for again: %r", question.txn_id, error)
            return LocalOutcome.UNKNOWN
        logger.info("%s is checked: %s", question.txn_id, "not known yet" if outcome is None else outcome.value)
        return _ANSWERS[outcome]
