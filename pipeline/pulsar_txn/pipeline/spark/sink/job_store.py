"""Carries out what the committer of `write_batch` asks for in addition: the job that sends the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.errors import OptionError, StoreFailed
from pulsar_txn.pipeline.spark.handing import Hand
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.control import RunJob
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore

Job: TypeAlias = Callable[[str], dict[str, int]]
"""Sends all rows in the transaction with this id; the rows by topic."""


class JobSinkStore(PulsarSinkStore):
    """A `PulsarSinkStore` whose rows are sent by `job`. `cause` is what the last job failed with."""

    def __init__(self, client: AsyncClient, control_topic: str, options: Options) -> None:
        super().__init__(client, control_topic, "", options)
        self.cause: Exception | None = None
        self._job: Job | None = None
        self._hand: Hand | None = None

    def expect_job(self, job: Job, hand: Hand) -> None:
        """The job of the next micro-batch, and how to reach the thread that runs it."""
        self._job, self._hand, self.cause = job, hand, None

    async def _perform(self, request: Any) -> Any:
        if isinstance(request, RunJob):
            return await self._run(request.txn_id)
        return await super()._perform(request)

    async def _run(self, txn_id: str) -> dict[str, int]:
        assert self._job is not None  # noqa: S101  # `expect_job` comes first
        assert self._hand is not None  # noqa: S101
        job = self._job
        try:
            rows: dict[str, int] = await self._hand(lambda: job(txn_id))
        except OptionError:
            await self._abort(txn_id)  # another run would end the same way
            raise
        except Exception as error:
            self.cause = error
            raise StoreFailed(f"the job that sends the rows failed: {error}") from error
        finally:
            self._deadline = asyncio.get_running_loop().time() + self._options.commit_timeout_ms / 1000
        return rows
