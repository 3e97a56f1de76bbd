"""The public suite of ledgers on logs in topics: on our broker, and on stock Pulsar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
from targets import Target
from topic_stores import TopicStores

from pulsar_txn.ledger.protocols import StoreUnsupported
from pulsar_txn.ledger.testing import CHECKS, Check

WITH_CURSORS: Final = {
    "a_name_that_cannot_be_kept_is_refused_to_its_caller_alone",  # and topics have no names of 65,535 bytes
    "a_restart_keeps_everything",
    "a_crash_keeps_what_was_confirmed_and_a_prefix_of_the_rest",
    "cursors_remember_every_kind_of_acknowledgement",
    "many_random_acknowledgements_survive_restarts",
}
"""Checks that open cursors, which a log in a topic has not. What else they check is in `test_topic_ledger.py`."""


@pytest.fixture
async def stores(pulsar: Target) -> AsyncIterator[TopicStores]:
    namespace = "public/default" if pulsar.is_ours else "pulsar/system"
    made = TopicStores(pulsar.service_url, namespace, high_water_bytes=4 << 20)
    yield made
    await made.close()


def of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", [each for each in CHECKS if of(each) not in WITH_CURSORS], ids=of)
async def test_topic_store_keeps_the_promises_of_ledgers(check: Check, stores: TopicStores) -> None:
    await check(stores)


@pytest.mark.parametrize("check", [each for each in CHECKS if of(each) in WITH_CURSORS], ids=of)
async def test_what_needs_a_cursor_is_refused_with_a_sentence(check: Check, stores: TopicStores) -> None:
    with pytest.raises(StoreUnsupported, match="no cursors; subscribe to a topic"):
        await check(stores)
