"""Found by Spark through its name (`pyspark_*`): registers `format("pulsar")` by itself.

Spark imports every such module at its first use of a Python source, and one that fails switches the search off for all.
So this one must import fast and never raise. Where something is missing, or PySpark is too old, `DefaultSource` says so when it
is used; without sources in Python (PySpark 3) there is none.
"""

from typing import Any

__all__: list[str] = []

try:
    from pulsar_txn.pipeline.spark import PulsarDataSource as DefaultSource
except ImportError as error:
    _REASON = str(error)
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        pass
    else:

        class DefaultSource(DataSource):  # type: ignore[no-redef]  # in place of ours
            """Says why `format("pulsar")` does not work here."""

            def __init__(self, options: Any) -> None:
                del options
                raise ImportError(_REASON)

            @classmethod
            def name(cls) -> str:
                """The name for `format(…)`."""
                return "pulsar"

        __all__ = ["DefaultSource"]
else:
    __all__ = ["DefaultSource"]
