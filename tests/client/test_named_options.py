"""Options that take a member of an enum take its name in small letters as well."""

import enum
from typing import get_args

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import errors
from pulsar_txn.client.loop.options import PipelineOptions, Poison, PoisonName
from pulsar_txn.client.receive.options import (
    ConsumerOptions,
    ConsumerType,
    ConsumerTypeName,
    InitialPosition,
    InitialPositionName,
    RegexSubscriptionMode,
    RegexSubscriptionModeName,
)
from pulsar_txn.client.schema.crypto import CryptoFailureAction, CryptoFailureActionName
from pulsar_txn.client.send.options import (
    AccessMode,
    AccessModeName,
    BatchingType,
    BatchingTypeName,
    Compression,
    CompressionName,
    ProducerOptions,
)
from pulsar_txn.client.send.routing import HashingScheme, HashingSchemeName, RoutingMode, RoutingModeName

NAMED = [
    (ConsumerOptions, "consumer_type", ConsumerType, ConsumerTypeName),
    (ConsumerOptions, "initial_position", InitialPosition, InitialPositionName),
    (ConsumerOptions, "regex_subscription_mode", RegexSubscriptionMode, RegexSubscriptionModeName),
    (ConsumerOptions, "crypto_failure_action", CryptoFailureAction, CryptoFailureActionName),
    (ProducerOptions, "access_mode", AccessMode, AccessModeName),
    (ProducerOptions, "compression", Compression, CompressionName),
    (ProducerOptions, "batching_type", BatchingType, BatchingTypeName),
    (ProducerOptions, "routing", RoutingMode, RoutingModeName),
    (ProducerOptions, "hashing", HashingScheme, HashingSchemeName),
    (PipelineOptions, "on_poison", Poison, PoisonName),
]


@pytest.mark.parametrize(
    ("options", "option", "kind", "names"), NAMED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_member_is_taken_by_its_name_and_checkers_know_the_same_names(
    options: type, option: str, kind: type[enum.Enum], names: object
) -> None:
    assert get_args(names) == tuple(name.lower() for name in kind.__members__)
    for name, member in kind.__members__.items():
        assert getattr(options(**{option: name.lower()}), option) is member
        assert getattr(options(**{option: member}), option) is member


@pytest.mark.parametrize(
    ("options", "option", "kind", "names"), NAMED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_another_name_is_refused_with_those_that_there_are(
    options: type, option: str, kind: type[enum.Enum], names: object
) -> None:
    first = next(iter(kind.__members__))
    for wrong in (first, first.title(), "nothing", ""):
        with pytest.raises(
            errors.InvalidConfiguration, match=f"{option} must be one of .*{kind.__name__}.{first}.*'{first.lower()}'"
        ):
            options(**{option: wrong})


async def test_the_broker_is_told_what_the_names_mean(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        await client.create_producer("t", access_mode="exclusive", compression="lz4")
        await client.subscribe("t", "s", consumer_type="key_shared", initial_position="earliest")
    (producer,), (consumer,) = broker.all("producer"), broker.all("subscribe")
    assert (producer.producer_access_mode, consumer.subType, consumer.initialPosition) == (1, 3, 1)
