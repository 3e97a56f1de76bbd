import pickle
import re

import pytest

from pulsar_txn.client import errors
from pulsar_txn.client.errors import ConnectionLost, PulsarError, TransactionConflict
from pulsar_txn.client.net.connection import from_server
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnId

pytestmark = pytest.mark.quick


def drawn_tree() -> dict[str, str]:
    """Child name to parent name, read from the drawing in the module's docstring."""
    parents, path = {}, ["PulsarError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.fullmatch(r"([│ ├└─]+)(\w+)", line):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            parents[match[2]] = path[depth - 1]
    return parents


def real_tree(cls: type[PulsarError] = PulsarError) -> dict[str, str]:
    found = {}
    for sub in cls.__subclasses__():
        if sub.__module__ == errors.__name__:
            found |= {sub.__name__: cls.__name__} | real_tree(sub)
    return found


def test_the_drawing_is_the_tree():
    assert drawn_tree() == real_tree()


@pytest.mark.parametrize("code", list(ServerError))
def test_every_server_error_has_its_class(code):
    error = from_server(code, "no")
    assert error.code == code
    assert "no" in str(error)


def test_a_code_from_the_future_is_an_unknown_error():
    assert type(from_server(4711, "later")) is errors.UnknownError


def test_builtin_bases_catch_what_python_users_expect():
    assert isinstance(ConnectionLost("x"), ConnectionError)
    assert isinstance(errors.OperationTimeout("x"), TimeoutError)
    assert isinstance(errors.TransactionTimedOut("x"), TimeoutError)
    assert isinstance(errors.TransactionsDisabled("x"), NotImplementedError)
    assert isinstance(errors.InvalidTopicName("x"), ValueError)
    assert isinstance(errors.AlreadyClosed("x"), RuntimeError)


def test_an_error_says_what_where_and_what_to_do():
    error = ConnectionLost("refused", endpoint="localhost:1", hint="start it", txn_id=TxnId(3, 42))
    assert str(error) == "refused [transaction (3,42)] [localhost:1]: start it"


@pytest.mark.parametrize("name", sorted(real_tree()))
def test_errors_survive_pickling(name):
    error = getattr(errors, name)("why", txn_id=TxnId(1, 2), hint="do", endpoint="e", maybe_processed=True)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.txn_id, copy.maybe_processed) == (str(error), TxnId(1, 2), True)


def test_only_conflicts_and_other_aborts_ask_for_the_unit_to_be_run_again():
    names = {name for name in real_tree() if getattr(errors, name).requires_abort}
    assert names == {
        "OutboxAborted",
        "TransactionAborted",
        "TransactionConflict",
        "TransactionOperationFailed",
        "TransactionTimedOut",
    }
    assert TransactionConflict.retriable is False
