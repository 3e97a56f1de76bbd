"""The HTTP side: health, metrics and administration."""
