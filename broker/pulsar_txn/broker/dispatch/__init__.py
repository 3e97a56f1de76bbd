"""Dispatchers: which entry goes to which consumer of a subscription, and when."""
