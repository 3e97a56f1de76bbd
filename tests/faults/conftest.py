"""Servers that drop what a producer sends twice, so that a lost receipt doubles nothing; and topics on them."""

from __future__ import annotations

import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from our_broker import OurBroker
from targets import Target


@pytest.fixture(scope="session")
def deduplicating(pulsar: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The server of the test; of ours one of its own, that looks after dead connections at once."""
    if not pulsar.is_ours:
        _admin(pulsar, "namespaces/public/faults", None)
        _admin(pulsar, "namespaces/public/faults/deduplication", "true")
        yield pulsar
        return
    conf = {
        "brokerDeduplicationEnabled": "true",
        "connectionLivenessCheckTimeoutMillis": "300",
        "keepAliveIntervalSeconds": "1",
    }
    with OurBroker(data_dir=Path(tmp_path_factory.mktemp("faults")), conf=conf) as broker:
        yield Target("ours", "", broker.service_url, broker.admin_url)


@pytest.fixture
def topic(deduplicating: Target) -> str:
    """The full name of a topic that nobody else uses, in a namespace with deduplication."""
    namespace = "default" if deduplicating.is_ours else "faults"
    return f"persistent://public/{namespace}/t-{uuid.uuid4().hex[:12]}"


def _admin(pulsar: Target, path: str, body: str | None) -> None:
    """Create a namespace (PUT; it may be there already), or set a policy of it (POST)."""
    request = urllib.request.Request(
        f"{pulsar.admin_url}/admin/v2/{path}",
        data=None if body is None else body.encode(),
        method="PUT" if body is None else "POST",
        headers={"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
