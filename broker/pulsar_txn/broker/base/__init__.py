"""What every room of the broker stands on: configuration, the runtime, turns of the loop and their budget, limits."""
