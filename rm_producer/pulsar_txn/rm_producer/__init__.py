"""Transaction buffers: what readers of a topic partition may see.

A buffer knows positions, transaction ids and the headers of entries. It must never know payloads, sockets,
clocks, or the coordinator: whether a transaction is registered it asks by an effect. The in-topic buffer
(Pulsar's) writes data at once into the topic and holds readers back at max_read_position; the half-topic buffer
(RocketMQ's idea) keeps open data in a log of its own and copies it at commit, so readers wait for nobody.
"""

from .half import HalfTopicTransactionBuffer
from .requests import PLAIN, BufferStats, TopicRecord, TransactionBuffer
from .topic_buffer import TopicTransactionBuffer

__all__ = ["PLAIN", "BufferStats", "HalfTopicTransactionBuffer", "TopicRecord", "TopicTransactionBuffer", "TransactionBuffer"]
