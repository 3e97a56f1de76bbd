"""Programs written for the official client run on the compat layer, and see the same; each is run with both packages."""

from __future__ import annotations

import uuid

import pulsar as official
import pytest
from compat_programs import PROGRAMS

from pulsar_txn.client import compat

ON_STOCK_TOO = ["a_message_with_everything", "acknowledging", "seeking", "reading", "text_json_and_avro"]


def both(name, service_url):
    run = PROGRAMS[name]
    topics = [f"persistent://public/default/{uuid.uuid4().hex[:12]}" for _ in range(2)]
    theirs, mine = (run(package, service_url, topic) for package, topic in zip((official, compat), topics, strict=True))
    return repr(theirs).replace(topics[0], "TOPIC"), repr(mine).replace(topics[1], "TOPIC")


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ON_STOCK_TOO])
def test_a_program_of_the_official_client_runs_unchanged(pulsar, name):
    theirs, mine = both(name, pulsar.service_url)
    assert mine == theirs


@pytest.mark.parametrize("name", ON_STOCK_TOO)
def test_a_program_of_the_official_client_runs_unchanged_on_stock_too(pulsar, name):
    theirs, mine = both(name, pulsar.service_url)
    assert mine == theirs
