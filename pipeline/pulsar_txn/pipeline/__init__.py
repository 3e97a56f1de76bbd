"""Pipelines: consume, process, produce in one transaction; PySpark source and sink.

It knows the client and Spark. It must never know the broker, a ledger or the wire's bytes: what it needs of
Pulsar it asks the client for.
"""
