"""Rounds over the participants of a cluster: late writes that are found by the statistics of its brokers."""
