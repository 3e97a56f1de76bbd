from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TxnStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPEN: _ClassVar[TxnStatus]
    COMMITTING: _ClassVar[TxnStatus]
    COMMITTED: _ClassVar[TxnStatus]
    ABORTING: _ClassVar[TxnStatus]
    ABORTED: _ClassVar[TxnStatus]
    PREPARED: _ClassVar[TxnStatus]
    HELD: _ClassVar[TxnStatus]
OPEN: TxnStatus
COMMITTING: TxnStatus
COMMITTED: TxnStatus
ABORTING: TxnStatus
ABORTED: TxnStatus
PREPARED: TxnStatus
HELD: TxnStatus

class Subscription(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class TransactionMetadataEntry(_message.Message):
    __slots__ = ("metadata_op", "txnid_least_bits", "txnid_most_bits", "expected_status", "new_status", "partitions", "subscriptions", "timeout_ms", "start_time", "last_modification_time", "max_local_txn_id", "owner", "record_version", "transactional_id", "transactional_epoch", "group", "lane", "incarnation", "cause", "check_group", "check_data", "check_after_ms", "nonce", "prepared_token")
    class TransactionMetadataOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NEW: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        ADD_PARTITION: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        ADD_SUBSCRIPTION: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        UPDATE: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        GOODBYE: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        VANISHED: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        TAKEN_OVER: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        CHECKED: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        PREPARED: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        INCARNATION: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        PARKED: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
        RESUMED: _ClassVar[TransactionMetadataEntry.TransactionMetadataOp]
    NEW: TransactionMetadataEntry.TransactionMetadataOp
    ADD_PARTITION: TransactionMetadataEntry.TransactionMetadataOp
    ADD_SUBSCRIPTION: TransactionMetadataEntry.TransactionMetadataOp
    UPDATE: TransactionMetadataEntry.TransactionMetadataOp
    GOODBYE: TransactionMetadataEntry.TransactionMetadataOp
    VANISHED: TransactionMetadataEntry.TransactionMetadataOp
    TAKEN_OVER: TransactionMetadataEntry.TransactionMetadataOp
    CHECKED: TransactionMetadataEntry.TransactionMetadataOp
    PREPARED: TransactionMetadataEntry.TransactionMetadataOp
    INCARNATION: TransactionMetadataEntry.TransactionMetadataOp
    PARKED: TransactionMetadataEntry.TransactionMetadataOp
    RESUMED: TransactionMetadataEntry.TransactionMetadataOp
    METADATA_OP_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATUS_FIELD_NUMBER: _ClassVar[int]
    NEW_STATUS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_MODIFICATION_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_LOCAL_TXN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RECORD_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECK_DATA_FIELD_NUMBER: _ClassVar[int]
    CHECK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    metadata_op: TransactionMetadataEntry.TransactionMetadataOp
    txnid_least_bits: int
    txnid_most_bits: int
    expected_status: TxnStatus
    new_status: TxnStatus
    partitions: _containers.RepeatedScalarFieldContainer[str]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    timeout_ms: int
    start_time: int
    last_modification_time: int
    max_local_txn_id: int
    owner: str
    record_version: int
    transactional_id: str
    transactional_epoch: int
    group: _containers.RepeatedScalarFieldContainer[int]
    lane: int
    incarnation: str
    cause: int
    check_group: str
    check_data: bytes
    check_after_ms: int
    nonce: bytes
    prepared_token: bytes
    def __init__(self, metadata_op: _Optional[_Union[TransactionMetadataEntry.TransactionMetadataOp, str]] = ..., txnid_least_bits: _Optional[int] = ..., txnid_most_bits: _Optional[int] = ..., expected_status: _Optional[_Union[TxnStatus, str]] = ..., new_status: _Optional[_Union[TxnStatus, str]] = ..., partitions: _Optional[_Iterable[str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping[str, object]]]] = ..., timeout_ms: _Optional[int] = ..., start_time: _Optional[int] = ..., last_modification_time: _Optional[int] = ..., max_local_txn_id: _Optional[int] = ..., owner: _Optional[str] = ..., record_version: _Optional[int] = ..., transactional_id: _Optional[str] = ..., transactional_epoch: _Optional[int] = ..., group: _Optional[_Iterable[int]] = ..., lane: _Optional[int] = ..., incarnation: _Optional[str] = ..., cause: _Optional[int] = ..., check_group: _Optional[str] = ..., check_data: _Optional[bytes] = ..., check_after_ms: _Optional[int] = ..., nonce: _Optional[bytes] = ..., prepared_token: _Optional[bytes] = ...) -> None: ...

class BatchedTransactionMetadataEntry(_message.Message):
    __slots__ = ("transaction_logs",)
    TRANSACTION_LOGS_FIELD_NUMBER: _ClassVar[int]
    transaction_logs: _containers.RepeatedCompositeFieldContainer[TransactionMetadataEntry]
    def __init__(self, transaction_logs: _Optional[_Iterable[_Union[TransactionMetadataEntry, _Mapping[str, object]]]] = ...) -> None: ...

class CoordinatorSnapshot(_message.Message):
    __slots__ = ("format_version", "tc_id", "next_local_txn_id", "newest_time", "covered_ledger_id", "covered_entry_id", "transactions", "outcome_pages", "owners", "late_outcomes", "epochs", "lanes", "next_lane", "ended_tokens", "incarnations", "lanes_given", "until_least")
    class Owner(_message.Message):
        __slots__ = ("index", "principal", "transactional_id", "epoch")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        index: int
        principal: str
        transactional_id: str
        epoch: int
        def __init__(self, index: _Optional[int] = ..., principal: _Optional[str] = ..., transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...
    class Transaction(_message.Message):
        __slots__ = ("least_bits", "status", "timeout_ms", "start_time", "partitions", "subscriptions", "principal", "transactional_id", "epoch", "lane", "last_modification_time", "nonce", "check_group", "check_data", "check_after_ms", "check_count", "asked_ms", "prepared_token", "prepared_ms", "held_cause", "parked_ms", "resumed_ms")
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
        START_TIME_FIELD_NUMBER: _ClassVar[int]
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
        PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        LANE_FIELD_NUMBER: _ClassVar[int]
        LAST_MODIFICATION_TIME_FIELD_NUMBER: _ClassVar[int]
        NONCE_FIELD_NUMBER: _ClassVar[int]
        CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
        CHECK_DATA_FIELD_NUMBER: _ClassVar[int]
        CHECK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
        CHECK_COUNT_FIELD_NUMBER: _ClassVar[int]
        ASKED_MS_FIELD_NUMBER: _ClassVar[int]
        PREPARED_TOKEN_FIELD_NUMBER: _ClassVar[int]
        PREPARED_MS_FIELD_NUMBER: _ClassVar[int]
        HELD_CAUSE_FIELD_NUMBER: _ClassVar[int]
        PARKED_MS_FIELD_NUMBER: _ClassVar[int]
        RESUMED_MS_FIELD_NUMBER: _ClassVar[int]
        least_bits: int
        status: TxnStatus
        timeout_ms: int
        start_time: int
        partitions: _containers.RepeatedScalarFieldContainer[str]
        subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
        principal: str
        transactional_id: str
        epoch: int
        lane: int
        last_modification_time: int
        nonce: bytes
        check_group: str
        check_data: bytes
        check_after_ms: int
        check_count: int
        asked_ms: int
        prepared_token: bytes
        prepared_ms: int
        held_cause: int
        parked_ms: int
        resumed_ms: int
        def __init__(self, least_bits: _Optional[int] = ..., status: _Optional[_Union[TxnStatus, str]] = ..., timeout_ms: _Optional[int] = ..., start_time: _Optional[int] = ..., partitions: _Optional[_Iterable[str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping[str, object]]]] = ..., principal: _Optional[str] = ..., transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ..., lane: _Optional[int] = ..., last_modification_time: _Optional[int] = ..., nonce: _Optional[bytes] = ..., check_group: _Optional[str] = ..., check_data: _Optional[bytes] = ..., check_after_ms: _Optional[int] = ..., check_count: _Optional[int] = ..., asked_ms: _Optional[int] = ..., prepared_token: _Optional[bytes] = ..., prepared_ms: _Optional[int] = ..., held_cause: _Optional[int] = ..., parked_ms: _Optional[int] = ..., resumed_ms: _Optional[int] = ...) -> None: ...
    class EndedToken(_message.Message):
        __slots__ = ("least_bits", "token")
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        least_bits: int
        token: bytes
        def __init__(self, least_bits: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...
    class Lane(_message.Message):
        __slots__ = ("lane", "state", "least_bits", "incarnation", "principal", "transactional_id", "epoch")
        LANE_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        INCARNATION_FIELD_NUMBER: _ClassVar[int]
        PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        lane: int
        state: int
        least_bits: int
        incarnation: str
        principal: str
        transactional_id: str
        epoch: int
        def __init__(self, lane: _Optional[int] = ..., state: _Optional[int] = ..., least_bits: _Optional[int] = ..., incarnation: _Optional[str] = ..., principal: _Optional[str] = ..., transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...
    class Incarnation(_message.Message):
        __slots__ = ("service", "first_least", "ledger_id", "entry_id", "goes_on")
        SERVICE_FIELD_NUMBER: _ClassVar[int]
        FIRST_LEAST_FIELD_NUMBER: _ClassVar[int]
        LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
        ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
        GOES_ON_FIELD_NUMBER: _ClassVar[int]
        service: int
        first_least: int
        ledger_id: int
        entry_id: int
        goes_on: bool
        def __init__(self, service: _Optional[int] = ..., first_least: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., goes_on: bool = ...) -> None: ...
    class OutcomePage(_message.Message):
        __slots__ = ("number", "outcomes", "owners")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        OUTCOMES_FIELD_NUMBER: _ClassVar[int]
        OWNERS_FIELD_NUMBER: _ClassVar[int]
        number: int
        outcomes: bytes
        owners: bytes
        def __init__(self, number: _Optional[int] = ..., outcomes: _Optional[bytes] = ..., owners: _Optional[bytes] = ...) -> None: ...
    class LateOutcome(_message.Message):
        __slots__ = ("least_bits", "outcome", "forgotten_at", "principal", "transactional_id", "epoch")
        LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
        OUTCOME_FIELD_NUMBER: _ClassVar[int]
        FORGOTTEN_AT_FIELD_NUMBER: _ClassVar[int]
        PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        least_bits: int
        outcome: int
        forgotten_at: int
        principal: str
        transactional_id: str
        epoch: int
        def __init__(self, least_bits: _Optional[int] = ..., outcome: _Optional[int] = ..., forgotten_at: _Optional[int] = ..., principal: _Optional[str] = ..., transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...
    class Epoch(_message.Message):
        __slots__ = ("principal", "transactional_id", "epoch", "last_used_ms")
        PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        LAST_USED_MS_FIELD_NUMBER: _ClassVar[int]
        principal: str
        transactional_id: str
        epoch: int
        last_used_ms: int
        def __init__(self, principal: _Optional[str] = ..., transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ..., last_used_ms: _Optional[int] = ...) -> None: ...
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TC_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_LOCAL_TXN_ID_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIME_FIELD_NUMBER: _ClassVar[int]
    COVERED_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    COVERED_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_PAGES_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    LATE_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    NEXT_LANE_FIELD_NUMBER: _ClassVar[int]
    ENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    LANES_GIVEN_FIELD_NUMBER: _ClassVar[int]
    UNTIL_LEAST_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    tc_id: int
    next_local_txn_id: int
    newest_time: int
    covered_ledger_id: int
    covered_entry_id: int
    transactions: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.Transaction]
    outcome_pages: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.OutcomePage]
    owners: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.Owner]
    late_outcomes: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.LateOutcome]
    epochs: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.Epoch]
    lanes: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.Lane]
    next_lane: int
    ended_tokens: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.EndedToken]
    incarnations: _containers.RepeatedCompositeFieldContainer[CoordinatorSnapshot.Incarnation]
    lanes_given: int
    until_least: int
    def __init__(self, format_version: _Optional[int] = ..., tc_id: _Optional[int] = ..., next_local_txn_id: _Optional[int] = ..., newest_time: _Optional[int] = ..., covered_ledger_id: _Optional[int] = ..., covered_entry_id: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[CoordinatorSnapshot.Transaction, _Mapping[str, object]]]] = ..., outcome_pages: _Optional[_Iterable[_Union[CoordinatorSnapshot.OutcomePage, _Mapping[str, object]]]] = ..., owners: _Optional[_Iterable[_Union[CoordinatorSnapshot.Owner, _Mapping[str, object]]]] = ..., late_outcomes: _Optional[_Iterable[_Union[CoordinatorSnapshot.LateOutcome, _Mapping[str, object]]]] = ..., epochs: _Optional[_Iterable[_Union[CoordinatorSnapshot.Epoch, _Mapping[str, object]]]] = ..., lanes: _Optional[_Iterable[_Union[CoordinatorSnapshot.Lane, _Mapping[str, object]]]] = ..., next_lane: _Optional[int] = ..., ended_tokens: _Optional[_Iterable[_Union[CoordinatorSnapshot.EndedToken, _Mapping[str, object]]]] = ..., incarnations: _Optional[_Iterable[_Union[CoordinatorSnapshot.Incarnation, _Mapping[str, object]]]] = ..., lanes_given: _Optional[int] = ..., until_least: _Optional[int] = ...) -> None: ...
