"""The fixture `pulsar_broker` for pytest; importing it must never raise, whatever is not installed."""
