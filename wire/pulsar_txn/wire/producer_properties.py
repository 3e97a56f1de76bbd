"""Properties of a producer (CommandProducer.metadata) that our broker understands. Any client can set them."""

from __future__ import annotations

from typing import Final

REFUSE_GAPS: Final = "pulsar-txn.refuse-sequence-gaps"
"""With the value `true`: a message whose sequence id is not the next one of its producer is refused."""
