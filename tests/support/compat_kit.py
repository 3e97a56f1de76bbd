"""What the programs in the style of the official client's users share.

`pulsar` is the package: the official one, or our compat layer. Each program makes its own client and closes it, and returns
facts that must be equal on both packages.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager

WAIT = 10_000
QUIET = logging.getLogger("compat-programs")
QUIET.setLevel(logging.CRITICAL)

PROGRAMS = {}
PARTITIONS = {}


def program(function=None, *, partitions=0):
    """A program of `(pulsar, url, topic)`; with `partitions` its topic is made before, with so many."""

    def register(function):
        PROGRAMS[function.__name__] = function
        PARTITIONS[function.__name__] = partitions
        return function

    return register if function is None else register(function)


@contextmanager
def open_client(pulsar, url, **options):
    client = pulsar.Client(url, logger=QUIET, **options)
    try:
        yield client
    finally:
        client.close()


def raised(pulsar, function, *args, **kwargs):
    """The name of what a call raises, and whether `except PulsarException` catches it."""
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - its kind is the fact
        names = [cls.__name__ for cls in type(error).__mro__]
        return names[0], isinstance(error, pulsar.PulsarException)
    return "nothing"


def drain(consumer, count, wait=WAIT):
    return [consumer.receive(wait) for _ in range(count)]
