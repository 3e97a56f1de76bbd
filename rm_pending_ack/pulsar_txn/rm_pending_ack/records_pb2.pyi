from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PendingAckOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK: _ClassVar[PendingAckOp]
    COMMIT: _ClassVar[PendingAckOp]
    ABORT: _ClassVar[PendingAckOp]
    PLAIN_ACK: _ClassVar[PendingAckOp]
    CURSOR_STORED: _ClassVar[PendingAckOp]
    CURSOR_RESET: _ClassVar[PendingAckOp]

class AckType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Individual: _ClassVar[AckType]
    Cumulative: _ClassVar[AckType]
ACK: PendingAckOp
COMMIT: PendingAckOp
ABORT: PendingAckOp
PLAIN_ACK: PendingAckOp
CURSOR_STORED: PendingAckOp
CURSOR_RESET: PendingAckOp
Individual: AckType
Cumulative: AckType

class PendingAckMetadata(_message.Message):
    __slots__ = ("ledgerId", "entryId", "ack_set", "batch_size")
    LEDGERID_FIELD_NUMBER: _ClassVar[int]
    ENTRYID_FIELD_NUMBER: _ClassVar[int]
    ACK_SET_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ledgerId: int
    entryId: int
    ack_set: _containers.RepeatedScalarFieldContainer[int]
    batch_size: int
    def __init__(self, ledgerId: _Optional[int] = ..., entryId: _Optional[int] = ..., ack_set: _Optional[_Iterable[int]] = ..., batch_size: _Optional[int] = ...) -> None: ...

class PendingAckMetadataEntry(_message.Message):
    __slots__ = ("pending_ack_op", "ack_type", "txnid_least_bits", "txnid_most_bits", "pending_ack_metadata", "record_version", "low_watermark", "acker", "ack_number")
    PENDING_ACK_OP_FIELD_NUMBER: _ClassVar[int]
    ACK_TYPE_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    PENDING_ACK_METADATA_FIELD_NUMBER: _ClassVar[int]
    RECORD_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ACKER_FIELD_NUMBER: _ClassVar[int]
    ACK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    pending_ack_op: PendingAckOp
    ack_type: AckType
    txnid_least_bits: int
    txnid_most_bits: int
    pending_ack_metadata: _containers.RepeatedCompositeFieldContainer[PendingAckMetadata]
    record_version: int
    low_watermark: int
    acker: int
    ack_number: int
    def __init__(self, pending_ack_op: _Optional[_Union[PendingAckOp, str]] = ..., ack_type: _Optional[_Union[AckType, str]] = ..., txnid_least_bits: _Optional[int] = ..., txnid_most_bits: _Optional[int] = ..., pending_ack_metadata: _Optional[_Iterable[_Union[PendingAckMetadata, _Mapping[str, object]]]] = ..., record_version: _Optional[int] = ..., low_watermark: _Optional[int] = ..., acker: _Optional[int] = ..., ack_number: _Optional[int] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class PendingAckSnapshot(_message.Message):
    __slots__ = ("format_version", "applied", "last", "coordinators", "settled", "last_committed_least_bits", "last_committed_most_bits")
    class Key(_message.Message):
        __slots__ = ("acker", "number", "content")
        ACKER_FIELD_NUMBER: _ClassVar[int]
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        CONTENT_FIELD_NUMBER: _ClassVar[int]
        acker: int
        number: int
        content: bytes
        def __init__(self, acker: _Optional[int] = ..., number: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...
    class Held(_message.Message):
        __slots__ = ("least_bits", "first", "individual", "cumulative", "keys")
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        INDIVIDUAL_FIELD_NUMBER: _ClassVar[int]
        CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        least_bits: int
        first: LogPosition
        individual: _containers.RepeatedCompositeFieldContainer[PendingAckMetadata]
        cumulative: PendingAckMetadata
        keys: _containers.RepeatedCompositeFieldContainer[PendingAckSnapshot.Key]
        def __init__(self, least_bits: _Optional[int] = ..., first: _Optional[_Union[LogPosition, _Mapping[str, object]]] = ..., individual: _Optional[_Iterable[_Union[PendingAckMetadata, _Mapping[str, object]]]] = ..., cumulative: _Optional[_Union[PendingAckMetadata, _Mapping[str, object]]] = ..., keys: _Optional[_Iterable[_Union[PendingAckSnapshot.Key, _Mapping[str, object]]]] = ...) -> None: ...
    class Coordinator(_message.Message):
        __slots__ = ("most_bits", "low_watermark", "open", "ended_least_bits", "ended_action")
        MOST_BITS_FIELD_NUMBER: _ClassVar[int]
        LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
        OPEN_FIELD_NUMBER: _ClassVar[int]
        ENDED_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        ENDED_ACTION_FIELD_NUMBER: _ClassVar[int]
        most_bits: int
        low_watermark: int
        open: _containers.RepeatedCompositeFieldContainer[PendingAckSnapshot.Held]
        ended_least_bits: _containers.RepeatedScalarFieldContainer[int]
        ended_action: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, most_bits: _Optional[int] = ..., low_watermark: _Optional[int] = ..., open: _Optional[_Iterable[_Union[PendingAckSnapshot.Held, _Mapping[str, object]]]] = ..., ended_least_bits: _Optional[_Iterable[int]] = ..., ended_action: _Optional[_Iterable[int]] = ...) -> None: ...
    class Settled(_message.Message):
        __slots__ = ("at", "first", "least_bits", "most_bits", "individual", "cumulative")
        AT_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        MOST_BITS_FIELD_NUMBER: _ClassVar[int]
        INDIVIDUAL_FIELD_NUMBER: _ClassVar[int]
        CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
        at: LogPosition
        first: LogPosition
        least_bits: int
        most_bits: int
        individual: _containers.RepeatedCompositeFieldContainer[PendingAckMetadata]
        cumulative: PendingAckMetadata
        def __init__(self, at: _Optional[_Union[LogPosition, _Mapping[str, object]]] = ..., first: _Optional[_Union[LogPosition, _Mapping[str, object]]] = ..., least_bits: _Optional[int] = ..., most_bits: _Optional[int] = ..., individual: _Optional[_Iterable[_Union[PendingAckMetadata, _Mapping[str, object]]]] = ..., cumulative: _Optional[_Union[PendingAckMetadata, _Mapping[str, object]]] = ...) -> None: ...
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITTED_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITTED_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    applied: int
    last: LogPosition
    coordinators: _containers.RepeatedCompositeFieldContainer[PendingAckSnapshot.Coordinator]
    settled: _containers.RepeatedCompositeFieldContainer[PendingAckSnapshot.Settled]
    last_committed_least_bits: int
    last_committed_most_bits: int
    def __init__(self, format_version: _Optional[int] = ..., applied: _Optional[int] = ..., last: _Optional[_Union[LogPosition, _Mapping[str, object]]] = ..., coordinators: _Optional[_Iterable[_Union[PendingAckSnapshot.Coordinator, _Mapping[str, object]]]] = ..., settled: _Optional[_Iterable[_Union[PendingAckSnapshot.Settled, _Mapping[str, object]]]] = ..., last_committed_least_bits: _Optional[int] = ..., last_committed_most_bits: _Optional[int] = ...) -> None: ...
