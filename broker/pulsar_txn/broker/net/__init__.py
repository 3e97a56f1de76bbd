"""Connections: bytes to commands and answers to bytes. This room knows no topic and no transaction."""
