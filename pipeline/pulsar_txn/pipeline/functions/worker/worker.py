"""A functions worker: asks a broker what is to run, runs it, and reports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.pipeline.functions.worker.answers import Answers
from pulsar_txn.pipeline.functions.worker.door import Door, WorkerReplaced
from pulsar_txn.pipeline.functions.worker.specs import specs_of
from pulsar_txn.pipeline.functions.worker.supervisor import Supervisor

logger = logging.getLogger("pulsar_txn.pipeline.functions.worker")

REPORT_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 1.0


async def work(admin_url: str, *, with_parent: bool) -> None:
    """Until SIGTERM or SIGINT, or, `with_parent`, until the standard input ends. WorkerReplaced when another one takes over.

    While the broker does not answer, the functions run on.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    worker = f"worker-{os.getpid()}-{os.urandom(4).hex()}"
    with tempfile.TemporaryDirectory(prefix="pulsar-txn-functions-") as folder:
        async with aiohttp.ClientSession() as session:
            door = Door(session, admin_url, worker, Path(folder))
            supervisor = Supervisor(door.package)
            known = asyncio.Event()
            said: dict[str, list[dict[str, Any]]] = {}
            tasks = [
                asyncio.create_task(stop.wait()),
                asyncio.create_task(_follow(door, supervisor, known, said)),
                asyncio.create_task(_report(door, supervisor, worker, said)),
                asyncio.create_task(_answer_all(door, Answers(door, supervisor), known)),
            ]
            if with_parent:
                tasks.append(asyncio.create_task(_input_ends()))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await supervisor.end()


async def _follow(door: Door, supervisor: Supervisor, known: asyncio.Event, said: dict[str, list[dict[str, Any]]]) -> None:
    revision = ""
    while True:
        try:
            found = await door.assignments(revision)
        except WorkerReplaced:
            raise
        except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
            logger.warning("the broker does not say what is to run: %s; asking again", error)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        known.set()
        if _epoch(found["revision"]) != _epoch(revision):
            said.clear()  # a broker that was started again has no reports
        if found["revision"] != revision:
            supervisor.want(specs_of(found["functions"]), found["serviceUrl"])
            revision = found["revision"]


def _epoch(revision: str) -> str:
    return revision.partition(".")[0]


async def _report(door: Door, supervisor: Supervisor, worker: str, said: dict[str, list[dict[str, Any]]]) -> None:
    """Each second what has changed since it was `said` to this broker."""
    while True:
        reports = supervisor.reports(worker)
        for fqfn in said.keys() - reports.keys():
            del said[fqfn]
        for fqfn, report in reports.items():
            if said.get(fqfn) == report:
                continue
            said[fqfn] = report
            try:
                await door.report(fqfn, report)
            except WorkerReplaced:
                raise
            except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
                said.pop(fqfn, None)
                logger.debug("the broker did not take the report of %s: %s", fqfn, error)
        await asyncio.sleep(REPORT_SECONDS)


async def _answer_all(door: Door, answers: Answers, known: asyncio.Event) -> None:
    """Questions are answered side by side. `known`: the broker knows this worker."""
    await known.wait()
    answering: set[asyncio.Task[None]] = set()
    try:
        while True:
            try:
                asked = await door.questions()
            except WorkerReplaced:
                raise
            except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
                logger.debug("the broker does not say what it asks: %s; asking again", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for question in asked:
                task = asyncio.create_task(_answer_one(door, answers, question))
                answering.add(task)
                task.add_done_callback(answering.discard)
    finally:
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _answer_one(door: Door, answers: Answers, question: dict[str, Any]) -> None:
    said = await answers.answer(question)
    try:
        await door.answer(question["number"], said)
    except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
        logger.warning("the broker did not take the answer to %s of %s: %s", question["verb"], question["fqfn"], error)


async def _input_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await reader.read()
