"""The lowest room of the broker: configuration, the runtime, turns of the loop and their budget, limits."""
