"""Schemas of topics in Spark's terms, for the source and the sink: types, and values in both directions."""
