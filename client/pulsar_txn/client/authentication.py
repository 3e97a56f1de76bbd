"""Authentication: what a client shows to brokers. A class of your own needs the methods of `Authentication`."""

from pulsar_txn.client.net.authentication import Authentication, BasicAuthentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.net.oauth2 import OAuth2Authentication

__all__ = [
    "Authentication",
    "BasicAuthentication",
    "OAuth2Authentication",
    "TlsAuthentication",
    "TokenAuthentication",
]
