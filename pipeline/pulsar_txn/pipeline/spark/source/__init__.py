"""The source: reads what is committed, as batches and as streams, and never loses rows without a word."""
