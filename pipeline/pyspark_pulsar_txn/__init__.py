"""Found by Spark through its name (`pyspark_*`); it must import fast and never raise."""
