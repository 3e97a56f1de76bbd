"""The half-topic transaction buffer, RocketMQ's idea: open data waits in a log of its own and is copied at commit."""

from .buffer import HalfTopicTransactionBuffer

__all__ = ["HalfTopicTransactionBuffer"]
