"""A client of bare frames in the broker's own process and loop: what tests of the broker speak before, and beside, ours.

No socket and no real time: bytes go through `_Pipe` at once. `until` gives the loop turns, so whatever a memory store
and the broker put off happens meanwhile. A disk needs real time: `on_disk=True` makes each turn a millisecond.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError
from loop_blocks import work_of_the_test

from pulsar_txn.broker.broker import Broker
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch, encode_batch
from pulsar_txn.wire.entries import encode_entry, split_entry
from pulsar_txn.wire.frames import FrameReader, command, decode_command, frame_type
from pulsar_txn.wire.hot import (
    decode_ack_response,
    decode_message,
    decode_send_receipt,
    encode_ack,
    encode_flow,
    encode_send,
)
from pulsar_txn.wire.ids import AckKey, Position, TxnAction, TxnId, ack_set_from_words, signed64

FULL = "persistent://public/default/"


class Refused(Exception):  # noqa: N818 - the word of the field
    """The broker answered with an error; `code` is its ServerError number, `body` the whole answer."""

    def __init__(self, code: int, message: str, body: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.body = body


class Received:
    """A MESSAGE: position, payloads (those that its ack set leaves), redelivery count."""

    def __init__(self, frame: bytes) -> None:
        fields = decode_message(frame)
        _, ledger_id, entry_id, self.partition, self.redelivery_count, words, self.epoch, entry = fields
        self.entry = bytes(entry)
        self.position: Position = (ledger_id, entry_id)
        self.ack_set = ack_set_from_words(words) if words else None
        raw, payload = split_entry(entry)
        self.metadata = pb.MessageMetadata()
        with suppress(DecodeError):  # what only half parses arrives as well
            self.metadata.ParseFromString(raw)
        self.batch_size = 0
        self.payloads = [bytes(payload)]
        if self.metadata.HasField("num_messages_in_batch") and not self.metadata.compression:
            self.batch_size = self.metadata.num_messages_in_batch
            every = [message[0] for message in decode_batch(payload, self.batch_size)]
            self.payloads = [data for index, data in enumerate(every) if self.ack_set is None or self.ack_set >> index & 1]


class _Pipe(asyncio.Transport):
    def __init__(self, receive: Callable[[bytes], None]) -> None:
        super().__init__()
        self._receive = receive
        self.reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._receive(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._receive(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class RawClient:
    """One connection. Requests are awaited by their request id; everything else is collected.

    `on_disk`: the broker's store is a folder, so what it confirms takes real time.
    """

    features: pb.FeatureFlags | None = None
    """What CONNECT announces."""

    def __init__(self, broker: Broker, *, on_disk: bool = False) -> None:
        self._turn_s = 0.001 if on_disk else 0
        self.messages: dict[int, deque[Received]] = defaultdict(deque)
        self.receipts: deque[tuple[int, int, Position]] = deque()
        self.send_errors: list[Any] = []
        self.events: list[tuple[str, Any]] = []
        self._reader = FrameReader()
        self._answers: dict[int, Any] = {}
        self._ids = 2**63 + 7  # as a Java client: unsigned 64-bit numbers that are given back unchanged
        self._sequences: dict[int, int] = defaultdict(int)
        self.answers_pings = True
        self.pipe = _Pipe(self._received)
        self.connection = broker.connection()
        self.connection.connection_made(self.pipe)
        self.raw(command("connect", client_version="raw", protocol_version=21, feature_flags=self.features))

    # ---- bytes

    def raw(self, data: bytes) -> None:
        """Hand bytes to the broker."""
        self.connection.data_received(data)

    def drop(self) -> None:
        """The connection breaks."""
        self.pipe.closed = True
        self.connection.connection_lost(None)

    def _received(self, data: bytes) -> None:
        with work_of_the_test():
            self._take(data)

    def _take(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            kind = frame_type(frame)
            if kind == 9:
                self.messages[decode_message(frame)[0]].append(Received(frame))
            elif kind == 7:
                producer_id, sequence_id, ledger_id, entry_id, _ = decode_send_receipt(frame)
                self.receipts.append((producer_id, sequence_id, (ledger_id, entry_id)))
            elif kind == 8:
                self.send_errors.append(decode_command(frame).send_error)
            elif kind == 38:
                answer = decode_ack_response(frame)
                self._answers[answer[1] or 0] = answer
            else:
                self._other(decode_command(frame))

    def _other(self, cmd: pb.BaseCommand) -> None:
        ((field, body),) = [(field.name, body) for field, body in cmd.ListFields() if field.name != "type"]
        request_id = getattr(body, "request_id", None)
        if field == "ping" and self.answers_pings:
            asyncio.get_running_loop().call_soon(self.raw, command("pong"))
        if request_id is None or field in {"close_producer", "close_consumer"}:
            self.events.append((field, body))
        else:
            self._answers.setdefault(request_id, []).append(body)

    async def until(self, condition: Callable[[], Any], what: str = "", turns: int = 3000) -> Any:
        """Give the loop turns until `condition` holds, and return its value. AssertionError when it does not."""
        for _ in range(turns):
            value = condition()
            if value:
                return value
            await asyncio.sleep(self._turn_s)
        raise AssertionError(f"never happened: {what or condition}")

    async def settle(self, turns: int = 60) -> None:
        """Give the loop turns, for what is expected *not* to happen."""
        for _ in range(turns):
            await asyncio.sleep(self._turn_s)

    def start(self, name: str, **fields: Any) -> int:
        """Send a request; its id for `answer`."""
        self._ids += 1
        self.raw(command(name, request_id=self._ids, **fields))
        return self._ids

    async def answer(self, request_id: int) -> Any:
        """The answer of a request. Raises Refused for an error."""
        body = (await self.until(lambda: self._answers.get(request_id), f"answer of {request_id}")).pop(0)
        name = type(body).__name__
        if name == "CommandError" or (hasattr(body, "error") and body.HasField("error")):
            raise Refused(body.error, body.message, body)
        return body

    async def refusal(self, request_id: int) -> Refused | None:
        """How a request was refused; None when it was granted."""
        try:
            await self.answer(request_id)
        except Refused as refused:
            return refused
        return None

    async def request(self, name: str, **fields: Any) -> Any:
        """Send a request and await its answer."""
        return await self.answer(self.start(name, **fields))

    # ---- producing

    async def producer(self, topic: str, producer_id: int = 0, **fields: Any) -> Any:
        """Open a producer. Its sequence ids go on after the last one that the broker has, unless it has used one."""
        answer = await self.request("producer", topic=topic, producer_id=producer_id, **fields)
        self._sequences[producer_id] = self._sequences[producer_id] or answer.last_sequence_id + 1
        return answer

    def send(
        self,
        payload: bytes | Sequence[bytes],
        producer_id: int = 0,
        *,
        txn: TxnId | None = None,
        stamp: bool = True,
        sequence_id: int | None = None,
        key: str | None = None,
        name: str = "p",
        fields: Mapping[str, Any] | None = None,
        is_chunk: bool = False,
    ) -> int:
        """SEND one message, or a batch (a list). `stamp` False: the transaction is in the command only.

        `fields`: more of the metadata.
        """
        if sequence_id is None:
            sequence_id = self._sequences[producer_id]
        batch = not isinstance(payload, bytes)
        count = len(payload) if batch else 1
        self._sequences[producer_id] = sequence_id + count
        metadata = pb.MessageMetadata(
            **{"producer_name": name, "sequence_id": sequence_id, "publish_time": 1_700_000_000_000, **(fields or {})}
        )
        if key is not None:
            metadata.partition_key = key
        if txn is not None and stamp:
            metadata.txnid_least_bits, metadata.txnid_most_bits = txn.least, txn.most
        if isinstance(payload, bytes):
            body = payload
        else:
            metadata.num_messages_in_batch = count
            body = encode_batch([(each, None, (), 0, None) for each in payload])
        frame = encode_send(producer_id, sequence_id, count, encode_entry(metadata, body), txn=txn, is_chunk=is_chunk)
        self.raw(b"".join(frame))
        return sequence_id

    async def sent(self, payload: bytes | Sequence[bytes], producer_id: int = 0, **options: Any) -> Position:
        """SEND, and the position of its receipt. Raises Refused for a SEND_ERROR."""
        sequence_id = self.send(payload, producer_id, **options)
        found: list[Position] = []

        def answered() -> bool:
            for receipt in self.receipts:
                if receipt[:2] == (producer_id, sequence_id):
                    found.append(receipt[2])
                    self.receipts.remove(receipt)
                    return True
            return any((each.producer_id, each.sequence_id) == (producer_id, sequence_id) for each in self.send_errors)

        await self.until(answered, f"receipt of {sequence_id}")
        if not found:
            error = self.send_errors.pop()
            raise Refused(error.error, error.message, error)
        return found[0]

    # ---- consuming

    async def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        consumer_id: int = 0,
        *,
        kind: int = 0,
        permits: int = 1000,
        earliest: bool = True,
        **fields: Any,
    ) -> None:
        """Open a consumer and let it have `permits` messages."""
        await self.request(
            "subscribe",
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=consumer_id,
            initialPosition=int(earliest),
            **fields,
        )
        if permits:
            self.flow(permits, consumer_id)

    def flow(self, permits: int, consumer_id: int = 0) -> None:
        """FLOW."""
        self.raw(encode_flow(consumer_id, permits))

    async def receive(self, consumer_id: int = 0) -> Received:
        """The next MESSAGE."""
        queue = self.messages[consumer_id]
        await self.until(lambda: queue, f"a message for consumer {consumer_id}")
        return queue.popleft()

    async def payloads(self, count: int, consumer_id: int = 0) -> list[bytes]:
        """The payloads of the next messages, `count` at least."""
        found: list[bytes] = []
        while len(found) < count:
            found += (await self.receive(consumer_id)).payloads
        return found

    async def nothing(self, consumer_id: int = 0) -> None:
        """AssertionError when a message comes."""
        await self.settle()
        queue = self.messages[consumer_id]
        assert not queue, f"a message came: {[each.payloads for each in queue]}"

    async def ack(
        self,
        *messages: Received | Position,
        consumer_id: int = 0,
        txn: TxnId | None = None,
        cumulative: bool = False,
        left: int | None = None,
        key: AckKey | None = None,
    ) -> None:
        """ACK, with a receipt. `left`: the batch indexes that stay unacknowledged, as a bit set. Raises Refused."""
        self._ids += 1
        ids = [(*each.position, left, each.batch_size) if isinstance(each, Received) else (*each, left, 0) for each in messages]
        self.raw(encode_ack(consumer_id, cumulative, ids, txn=txn, request_id=self._ids, key=key))
        answer = await self.until(lambda: self._answers.pop(self._ids, None), "ACK_RESPONSE")
        if answer[3] is not None:
            raise Refused(answer[3], answer[4] or "", answer)

    # ---- transactions

    async def new_txn(self, tc_id: int = 0, timeout_ms: int = 60_000) -> TxnId:
        """NEW_TXN, after a TC_CLIENT_CONNECT."""
        await self.request("tcClientConnectRequest", tc_id=tc_id)
        body = await self.request("newTxn", tc_id=tc_id, txn_ttl_millis=timeout_ms)
        return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))

    async def add_topics(self, txn: TxnId, *topics: str) -> None:
        """ADD_PARTITION_TO_TXN."""
        await self.request("addPartitionToTxn", **_bits(txn), partitions=topics)

    async def txn_with(self, **messages: bytes) -> TxnId:
        """A transaction of coordinator 0 with a message in each topic, of producer 0, 1, …: `txn_with(a=b"one", b=b"two")`."""
        for producer_id, name in enumerate(messages):
            await self.producer(name, producer_id)
        txn = await self.new_txn(0)
        await self.add_topics(txn, *(FULL + name for name in messages))
        for producer_id, payload in enumerate(messages.values()):
            await self.sent(payload, producer_id, txn=txn)
        return txn

    async def add_subscriptions(self, txn: TxnId, *pairs: tuple[str, str]) -> None:
        """ADD_SUBSCRIPTION_TO_TXN, of (topic, subscription)."""
        subscriptions = [pb.Subscription(topic=topic, subscription=name) for topic, name in pairs]
        await self.request("addSubscriptionToTxn", **_bits(txn), subscription=subscriptions)

    async def end(self, txn: TxnId, action: TxnAction = TxnAction.COMMIT) -> Any:
        """END_TXN."""
        return await self.request("endTxn", **_bits(txn), txn_action=int(action))

    async def abort(self, txn: TxnId) -> Any:
        """END_TXN with ABORT."""
        return await self.end(txn, TxnAction.ABORT)


def _bits(txn: TxnId) -> Mapping[str, int]:
    return {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
