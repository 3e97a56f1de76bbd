"""The room of schemas: how a value becomes the payload of a message and back, and encryption of payloads."""
