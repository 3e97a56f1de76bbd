"""Half messages: messages that become visible when the program's own work is done, and disappear when it is not.

RocketMQ's transaction messages, for any number of messages and topics (`docs/how-to/back-check.md`):

1. The messages are sent in a transaction with a check group. When one of them cannot be stored, it is aborted and raised.
2. `execute` does the program's own work, once, and says what became of it: COMMIT, ROLLBACK or UNKNOWN.
3. The transaction ends accordingly. While it is UNKNOWN, also because the process has died or `execute` has raised, its
   coordinator asks a living member of the group.

`execute` that raises leaves the transaction to the check, as in RocketMQ, because an exception does not say whether the work
was done (the answer to a database's COMMIT may be what was lost). Unlike there, the program gets the exception.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import attrs

from pulsar_txn.client._callables import check_takes_one
from pulsar_txn.client._validation import refused, seconds_of, validate_text, validate_texts
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidConfiguration,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
)
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import TransactionOptions, TransactionState
from pulsar_txn.client.txn.check_groups import (
    DEFAULT_CHECK_TIMEOUT,
    AsyncCheckGroup,
    Check,
    CheckTerms,
    LocalOutcome,
    OnDecided,
    check_group_name,
    checked,
    data_of,
)
from pulsar_txn.client.txn.transaction import AsyncTransaction, unit_of
from pulsar_txn.client.txn.transactions import Transactions
from pulsar_txn.wire.ids import MessageId, TxnId

T = TypeVar("T")

logger = logging.getLogger("pulsar_txn.client.checks")

HALF_TIMEOUT: Final = 600.0
"""Seconds after which a half transaction is aborted while no member of its group lives."""


@attrs.frozen
class HalfMessage:
    """A further message of `send_in_transaction`. `producer`: another one of this client, for another topic.

    The other fields are those of `producer.send`.
    """

    value: Any
    producer: Any = None
    key: str | None = attrs.field(default=None, kw_only=True)
    ordering_key: bytes | None = attrs.field(default=None, kw_only=True)
    properties: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    event_time_ms: int | None = attrs.field(default=None, kw_only=True)

    def options(self) -> dict[str, Any]:
        """The arguments of a send."""
        return {
            "key": self.key,
            "ordering_key": self.ordering_key,
            "properties": self.properties,
            "event_time_ms": self.event_time_ms,
        }


@attrs.frozen
class HalfSent:
    """Argument of `execute`: the half messages are stored, and no reader sees them.

    `txn` is their transaction. What `execute` sends or acknowledges in it belongs to the unit too; it must wait for that.
    `message_ids` are in the order of the messages. `data` is what a check of this transaction would be given. `token`: that
    of the prepared transaction, of a producer with `prepare=True`; then nothing more is sent in it.
    """

    txn: Any
    message_ids: tuple[MessageId, ...]
    data: bytes
    token: PreparedToken | None = None

    @property
    def txn_id(self) -> TxnId:
        """The id of the transaction, as in `CheckQuestion.txn_id`: the key for a table of outcomes."""
        found: TxnId = self.txn.id
        return found


Execute: TypeAlias = Callable[[HalfSent], "LocalOutcome | Awaitable[LocalOutcome]"]
"""The program's own work, after the half messages are stored."""


@attrs.frozen
class HalfTerms:
    """Terms of a transactional producer; times in seconds or as timedeltas. Raises InvalidConfiguration."""

    group: str | None
    check: Check | AsyncCheckGroup
    after: float | timedelta | None
    timeout: float | timedelta
    concurrency: int
    prepare: bool = False
    check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT
    on_decided: OnDecided | None = None

    def __attrs_post_init__(self) -> None:
        if isinstance(self.check, AsyncCheckGroup) != (self.group is None):
            raise InvalidConfiguration(
                "a check function needs the name of its group, and a group that was joined has one",
                hint="give group= with a function, or what join_check_group() returned without it",
            )
        if self.group is not None:
            check_group_name("group", self.group)
            check_takes_one(self.check, "check")
        elif self.on_decided is not None:
            raise InvalidConfiguration(
                "on_decided belongs to a group", hint="give it to join_check_group(), which made the group that is given here"
            )
        self.terms()
        if self.after is not None:
            seconds_of(self.after, "check_after")
        self.options()

    def terms(self) -> CheckTerms:
        """Terms on which the group is asked."""
        return CheckTerms(self.concurrency, self.check_timeout, self.on_decided)

    def options(self) -> TransactionOptions:
        """Those of its transactions, without their group."""
        return TransactionOptions(timeout=seconds_of(self.timeout, "timeout"), name="half messages")


class HalfMessageSender:
    """The phases of `send_in_transaction`, for both clients."""

    def __init__(self, transactions: Transactions, topic: str, group: AsyncCheckGroup, terms: HalfTerms) -> None:
        self.group = group
        self._transactions = transactions
        self._topic = topic
        self.prepares = terms.prepare
        self._options = terms.options()
        self._after = terms.after
        self._owns_group = terms.group is not None

    async def close(self) -> None:
        """Leave the group, unless it was joined elsewhere. Idempotent."""
        if self._owns_group:
            await self.group.close()

    def data_of(self, first: HalfMessage, given: bytes | None) -> bytes:
        """Data of the question: the program's own bytes, or a picture of the first message. Raises InvalidConfiguration."""
        if given is not None:
            return given
        if first.key is not None:
            validate_text("key", first.key)
        if first.properties is not None:
            validate_texts("properties", first.properties)
        return data_of(self._topic, first.key, first.properties)

    def begin(self, data: bytes) -> AsyncTransaction:
        """The transaction of one call; its first send opens it. Raises as `AsyncClient.begin_transaction`."""
        what = checked(self.group.name, data, self._after)
        unit = self._transactions.new(attrs.evolve(self._options, checked=what))
        unit.begin()
        return AsyncTransaction(unit)

    async def give_back(self, txn: AsyncTransaction, error: BaseException) -> None:
        """A half message could not be stored: nothing of it is to be seen, and nothing was executed."""
        if not isinstance(error, Exception):
            unit_of(txn).abandon()
            return
        try:
            await txn.abort()
        except PulsarError as failed:
            error.add_note(f"the transaction {txn.id} could not be aborted ({failed}); its group or its timeout does that")

    async def leave(self, txn: AsyncTransaction, error: BaseException) -> None:
        """`execute` raised: nobody here knows what became of its work."""
        if isinstance(error, Exception):
            try:
                await txn.leave_to_check()
            except PulsarError as failed:
                error.add_note(f"the transaction {txn.id} is {txn.state.value}: {failed}")
                return
        else:
            unit_of(txn).leave_now()
        error.add_note(f"the transaction {txn.id} is left to the check of group {self.group.name!r}")

    async def end(self, txn: AsyncTransaction, outcome: object) -> LocalOutcome:
        """End it as `execute` said. Raises as `send_in_transaction`."""
        if not isinstance(outcome, LocalOutcome):
            error = InvalidConfiguration(
                f"execute must return a LocalOutcome, not {outcome!r}", hint="return LocalOutcome.COMMIT when its work is done"
            )
            await self.leave(txn, error)
            raise error
        if outcome is LocalOutcome.UNKNOWN:
            await txn.leave_to_check()
            return outcome
        extra = {"txn_id": str(txn.id), "state": outcome.name}
        try:
            await (txn.commit() if outcome is LocalOutcome.COMMIT else txn.abort())
        except InvalidTransactionStatus:
            raise  # the group has said the opposite
        except CommitOutcomeUnknown as error:
            if isinstance(error.__cause__, TransactionAborted):  # an abort was asked for
                raise
            logger.warning("%s; its group will say commit, which was executed", error, extra=extra)
        except PulsarError as error:
            if outcome is LocalOutcome.COMMIT and txn.state is not TransactionState.PREPARED:
                raise
            text = "transaction %s could not be ended (%s); its check group will end it: the local outcome is %s"
            logger.warning(text, txn.id, error, outcome.name, extra=extra)
        return outcome


class AsyncTransactionalProducer(Generic[T]):
    """Sends messages that become visible together with work of the program's own: `client.transactional_producer`.

    An async context manager that closes it.
    """

    def __init__(self, producer: AsyncProducer[T], half_messages: HalfMessageSender) -> None:
        self._producer = producer
        self._half_messages = half_messages

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._producer.topic

    @property
    def group(self) -> str:
        """The name of its check group."""
        return self._half_messages.group.name

    @property
    def producer(self) -> AsyncProducer[T]:
        """The producer of its topic, which can also send messages of its own."""
        return self._producer

    def __repr__(self) -> str:
        return f"<TransactionalProducer of {self.topic} in group {self.group!r}>"

    async def send_in_transaction(
        self,
        value: T | None,
        *,
        execute: Execute,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        also: Sequence[HalfMessage] = (),
        data: bytes | None = None,
    ) -> LocalOutcome:
        """Store messages that nobody sees yet, call `execute`, and make them visible or have them disappear.

        `value` and the options after `execute` are one message, as for `producer.send`; `also` are further ones, to this
        topic or by another producer of this client. `execute(half)` is called with a `HalfSent` after all of them are
        stored, and exactly once.
        It may be a coroutine function.
        It returns COMMIT, ROLLBACK or UNKNOWN, and so does this call. After UNKNOWN, or when this process dies, the
        coordinator asks the group's `check`, and hands it `data`: by default a picture of the first message
        (`CheckQuestion.message`), or at most 64 KiB of your own.

        COMMIT means that the messages are visible; or, when the answer to the commit was lost, that they will be, because
        the check says so too. It is raised when they will not:

        * what `producer.send` raises: a message was not stored, and nothing was executed;
        * TransactionAborted: `execute` returned COMMIT, but the transaction had ended before (its timeout, or a check);
        * InvalidTransactionStatus: `execute` returned ROLLBACK, but a check had committed it;
        * InvalidConfiguration: `execute` returned no LocalOutcome; the transaction is left to the check;
        * what `execute` raises, also a cancellation: the transaction is left to the check, since nobody here knows what
          became of the work. Return ROLLBACK when it is known that nothing was done.

        Source: RocketMQ's `sendMessageInTransaction`. If cancelled before `execute`: the messages are aborted.
        """
        first = HalfMessage(value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms)
        check_takes_one(execute, "execute")
        messages = validated_half_messages(first, also, AsyncProducer)
        what = self._half_messages.data_of(first, data)
        txn = self._half_messages.begin(what)
        try:
            sends = [(each.producer or self._producer).send(each.value, txn=txn, **each.options()) for each in messages]
            message_ids = tuple(await asyncio.gather(*sends))
            token = await txn.prepare() if self._half_messages.prepares else None
        except BaseException as error:
            await self._half_messages.give_back(txn, error)
            raise
        try:
            result = execute(HalfSent(txn, message_ids, what, token))
            outcome: object = await result if inspect.isawaitable(result) else result
        except BaseException as error:
            await self._half_messages.leave(txn, error)
            raise
        return await self._half_messages.end(txn, outcome)

    async def close(self) -> None:
        """Close the producer, and leave the group unless it was joined elsewhere. Idempotent. If cancelled, both go on."""
        await self._producer.close()
        await self._half_messages.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def validated_half_messages(first: HalfMessage, also: Sequence[HalfMessage], kind: type[Any]) -> list[HalfMessage]:
    """All messages of one call. InvalidConfiguration; `kind` is the class of producers."""
    if not isinstance(also, Sequence):
        raise refused("also", also, "a sequence of HalfMessage")
    for each in also:
        if not isinstance(each, HalfMessage):
            raise refused("each of also", each, "a HalfMessage")
        if each.producer is not None and not isinstance(each.producer, kind):
            raise refused("producer of a HalfMessage", each.producer, "a producer of this client")
    return [first, *also]
