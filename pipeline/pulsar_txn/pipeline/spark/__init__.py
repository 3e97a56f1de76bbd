"""PySpark: `format("pulsar")`, a source that reads what is committed and a sink that publishes a micro-batch at once, once."""
