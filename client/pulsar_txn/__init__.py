"""Transactions for Apache Pulsar in Python: `from pulsar_txn import AsyncClient, Client`.

The other names of the client are in `pulsar_txn.client`. Each room of the project is a folder of this package, wherever it is
installed. Nothing is loaded before it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient as AsyncClient
    from pulsar_txn.client import Client as Client

    __version__: str

# In a checkout every room is a folder of its own. They are found in the order of sys.path: an earlier build that stands there
# first is used. What is frozen into a program has no such folders. Tools that read sources know a namespace by this very line.
_own, __path__ = __path__, []
__path__ = __import__("pkgutil").extend_path(__path__, __name__) or _own

__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    """The classes of the client, and the version of the installed distribution."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pulsar-txn")
    if name in __all__:
        from pulsar_txn import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for completion, also those that are not loaded yet."""
    return sorted({*globals(), *__all__})
