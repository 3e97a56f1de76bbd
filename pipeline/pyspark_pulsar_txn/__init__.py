"""Found by Spark through its name (`pyspark_*`): registers `format("pulsar")` by itself.

Spark imports every such module at its first use of a Python source, and one that fails switches the search off for all.
So this one must import fast and never raise: without PySpark or pyarrow there is simply no `DefaultSource`.
"""

try:
    from pulsar_txn.pipeline.spark.datasource import PulsarDataSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
