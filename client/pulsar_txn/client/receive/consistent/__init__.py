"""The consistent reader: cuts through several topics that never show a part of a transaction."""
