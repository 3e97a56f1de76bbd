"""Runs programs with the official package in a process beside the tests.

It is C++, and a fault of it ends the whole process: a client of `AutoClusterFailover` does so once in a hundred times, after
its end, with "terminate called". What is compared is what a program says, so a program whose process ended is run again,
on another topic, because what it did before is still in the first one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pulsar
import pulsar.asyncio
from compat_asyncio import ASYNCIO_PROGRAMS
from compat_programs import PROGRAMS, SECURED


def _run(name, server, topic):
    if name in ASYNCIO_PROGRAMS:
        said = repr(asyncio.run(ASYNCIO_PROGRAMS[name](pulsar, pulsar.asyncio, server, topic)))
    else:
        said = repr((PROGRAMS | SECURED)[name](pulsar, server, topic))
    return said.replace(topic, "TOPIC")


def _one_process():
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


class Official:
    """`official(name, server, new_topic)` begins a program and returns a function: what the program says, as `repr`.

    `new_topic` is called before each attempt; in what the program says, the topic is TOPIC. Programs run one after the
    other. `close` ends the process.
    """

    def __init__(self):
        self._process = _one_process()
        self._thread = ThreadPoolExecutor(1)

    def __call__(self, name, server, new_topic):
        return self.beside(_run, lambda: (name, server, new_topic()))

    def beside(self, function, arguments=tuple):
        """Begin the function in the process; returns how to get its result, which may raise BrokenProcessPool.

        `arguments` gives the arguments of an attempt.
        """
        return self._thread.submit(self._again_when_it_ends, function, arguments, attempts=3).result

    def _again_when_it_ends(self, function, arguments, attempts):
        try:
            return self._process.submit(function, *arguments()).result()
        except BrokenProcessPool:
            self._process = _one_process()
            if attempts == 1:
                raise
        return self._again_when_it_ends(function, arguments, attempts - 1)

    def close(self):
        """End the process. Idempotent."""
        self._thread.shutdown()
        self._process.shutdown()
