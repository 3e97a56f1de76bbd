"""More half transactions than a check gets through at once: each is asked for, and none is lost."""

from __future__ import annotations

import asyncio
import collections
import urllib.request

import pytest
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.half_messages import CheckQuestion, LocalOutcome

pytestmark = pytest.mark.timeout(400)

QUICK = {
    "transactionCheckAfterInSeconds": "1",
    "transactionCheckIntervalInSeconds": "1",
    "numberOfTransactionCoordinators": "2",
}
COMMITTED, ABORTED = "pulsar_txn_committed_total", "pulsar_txn_aborted_total"


def metric(broker: OurBroker, name: str) -> int:
    """Of all coordinators."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{")))


async def left_to_check(
    halves: int, *, pause: float, hanging: int = 0, conf: dict[str, str], **terms: float
) -> tuple[int, int, collections.Counter[int]]:
    """How many of so many halves were committed and aborted, and for which the check ran how often.

    The check says COMMIT after `pause` seconds, but for the first `hanging` of them, about which it hangs.
    """
    asked: collections.Counter[int] = collections.Counter()

    async def check(question: CheckQuestion) -> LocalOutcome:
        asked[int(question.data)] += 1
        await asyncio.sleep(3600 if int(question.data) < hanging else pause)
        return LocalOutcome.COMMIT

    with OurBroker(conf=QUICK | conf) as broker:
        async with AsyncClient(broker.service_url) as client:
            producer = await client.create_producer("orders")
            for number in range(halves):
                txn = await client.begin_transaction(check_group="g", check_data=b"%d" % number, timeout=600)
                await producer.send(b"%d" % number, txn=txn)
                await txn.leave_to_check()
            await client.join_check_group("g", check, **terms)
            ended, quiet = -1, 0
            while ended < halves - hanging and quiet < 60:
                await asyncio.sleep(0.5)
                now = await asyncio.to_thread(metric, broker, COMMITTED) + await asyncio.to_thread(metric, broker, ABORTED)
                quiet = quiet + 1 if now == ended else 0
                ended = now
            ends = [await asyncio.to_thread(metric, broker, name) for name in (COMMITTED, ABORTED)]
    print(f"{halves} halves, {hanging} checks hang: {ends[0]} committed, {ends[1]} aborted, {len(asked)} asked")
    return ends[0], ends[1], asked


@pytest.mark.parametrize(("halves", "pause"), [(60, 0.1), pytest.param(1_000, 0.5, marks=pytest.mark.soak)])
async def test_each_half_is_asked_for_however_many_wait_and_none_is_lost(halves: int, pause: float) -> None:
    """1,000 open, a check of half a second, asked each second: the check ran for 288, and 375 of 500 were lost."""
    conf = {"transactionCheckMax": "3" if halves < 100 else "15", "transactionCheckPolicy": "abort"}
    committed, aborted, asked = await left_to_check(halves, pause=pause, conf=conf)
    assert (committed, aborted) == (halves, 0)
    assert asked == dict.fromkeys(range(halves), 1)


@pytest.mark.parametrize("halves", [40, pytest.param(200, marks=pytest.mark.soak)])
async def test_checks_that_hang_lose_no_half_and_hold_up_no_other_one_for_long(halves: int) -> None:
    """200 open, of which 8 checks hang: 52 of 100 were lost."""
    committed, aborted, asked = await left_to_check(
        halves, pause=0.05, hanging=8, conf={"transactionCheckMax": "15"}, check_timeout=2.0
    )
    assert (committed, aborted) == (halves - 8, 0)
    assert set(asked) == set(range(halves))
