"""What the sink knows of its surroundings: what the query reads, and whether anybody keeps what it writes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import admin
import pytest
from targets import Target

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options, read_options
from pulsar_txn.pipeline.spark.sink.delivery import check_not_read, source_ends, warn_if_nobody_keeps

TOPIC = "persistent://public/default/in"
OFFSET = json.dumps({"p": {f"{TOPIC}-partition-0": [1, 2], f"{TOPIC}-partition-1": [-1, -1]}, "v": 1})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    offsets = tmp_path / "check point" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "7").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{OFFSET}\n-\n{{"logOffset":3}}\n42\n')
    return offsets.parent


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "{}/"])
def test_the_ends_of_our_sources_are_found_in_the_checkpoint(checkpoint: Path, form: str) -> None:
    assert source_ends(form.format(checkpoint), 7) == [OFFSET]


def test_without_a_readable_checkpoint_nothing_is_known_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert source_ends(None, 7) == []
    for folder in (tmp_path / "absent", tmp_path / "absent"):
        assert source_ends(str(folder), 7) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the sink does not know the query's sources" in caplog.text


@pytest.mark.parametrize("target", ["in", TOPIC, f"{TOPIC}-partition-0", f"{TOPIC}-partition-5"])
def test_a_target_that_is_read_is_refused_under_any_of_its_names(target: str) -> None:
    with pytest.raises(OptionError, match=r"comes? back.*allowSelfWrite=true"):
        check_not_read(["out", target], [OFFSET])


def test_other_topics_may_be_written_to() -> None:
    check_not_read(["out", "persistent://public/other/in", "in2"], [OFFSET])


def options(pulsar: Target, **more: str) -> Options:
    return read_options({"service.url": pulsar.service_url, **more})


async def warnings(topic: str, given: Options, caplog: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pulsar_txn.pipeline"):
        await warn_if_nobody_keeps([topic], given)
    return str(caplog.text)


async def test_a_topic_without_subscription_and_retention_is_warned_of(
    pulsar: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = options(pulsar, **{"admin.url": pulsar.admin_url})
    assert "no subscription and no retention" in await warnings(topic, known, caplog), "it does not exist yet"
    async with AsyncClient(pulsar.service_url) as client:
        async with await client.create_producer(topic):
            assert "no subscription and no retention" in await warnings(topic, known, caplog)
        async with await client.subscribe(topic, "kept"):
            pass
        assert await warnings(topic, known, caplog) == ""


async def test_the_partitions_of_a_topic_are_asked_too(pulsar: Target, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    await admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 2)
    known = options(pulsar, **{"admin.url": pulsar.admin_url})
    assert "no subscription and no retention" in await warnings(topic, known, caplog)
    async with AsyncClient(pulsar.service_url) as client, await client.subscribe(topic, "kept"):
        assert await warnings(topic, known, caplog) == ""


async def test_without_the_admin_api_the_advice_is_given_and_no_error(
    pulsar: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert "With the option admin.url this is looked up" in await warnings(topic, options(pulsar), caplog)
    nobody = options(pulsar, **{"admin.url": "http://127.0.0.1:1"})
    assert "does not say whether anybody keeps its messages" in await warnings(topic, nobody, caplog)
