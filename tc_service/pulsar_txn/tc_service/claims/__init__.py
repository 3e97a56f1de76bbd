"""The room of what a service has claimed in a cluster: its numbers, and how far its logs have come."""
