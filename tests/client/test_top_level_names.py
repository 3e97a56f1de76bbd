"""`from pulsar_txn import AsyncClient, Client`: two classes and the version, loaded when they are used."""

import importlib.metadata
import subprocess
import sys

import pytest

import pulsar_txn
from pulsar_txn import client


def test_the_two_classes_are_those_of_the_client():
    from pulsar_txn import AsyncClient, Client

    assert (AsyncClient, Client) == (client.AsyncClient, client.Client)


def test_the_version_is_that_of_the_distribution():
    assert pulsar_txn.__version__ == importlib.metadata.version("pulsar-txn")


def test_the_names_are_offered_for_completion_and_there_are_no_others():
    assert {"AsyncClient", "Client", "__version__"} <= set(dir(pulsar_txn))
    with pytest.raises(AttributeError, match="has no attribute 'Consumer'"):
        _ = pulsar_txn.Consumer


def test_nothing_is_loaded_before_it_is_asked_for():
    program = "import sys, pulsar_txn; print(sorted(name for name in sys.modules if name.startswith('pulsar_txn.')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
