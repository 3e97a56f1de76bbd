"""uvloop is an extra: without it the client works on asyncio's loop, and says so at debug level only."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from pulsar_txn.client.net.runtime import new_loop


def test_without_uvloop_the_loop_is_asyncios_and_only_the_debug_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with caplog.at_level(logging.DEBUG, logger="pulsar_txn.client"):
        loop = new_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    assert [(record.levelno, record.exc_info) for record in caplog.records] == [(logging.DEBUG, None)]
    assert "uvloop" in caplog.text


def test_with_uvloop_the_loop_is_its_own() -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = new_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)
