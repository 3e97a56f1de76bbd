"""Requests of commands to the HTTP of a running server: a broker of ours, a coordinator, or Apache Pulsar."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .exits import REFUSED, UNAVAILABLE, USAGE, Ending

BASE: Final = "/admin/v3/transactions"
_TIMEOUT_SECONDS: Final = 30.0


class Answered(Ending):
    """The server has answered with an HTTP `status` that is an error."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(REFUSED, f"the broker at {url} answers {status}: {reason}")
        self.status = status


def token_in(path: Path | None) -> str:
    """The token in a file. Raises Ending."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in ASCII"
        raise Ending(USAGE, f"--auth-token-file: no token can be read from it: {reason}; give the path of a file") from None


def tls_with(trust: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """For https. Raises Ending."""
    try:
        context = ssl.create_default_context(cafile=trust)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise Ending(USAGE, f"the files of TLS cannot be used: {error}") from error
    return context


class Admin:
    """Requests to one admin URL, below the path `base`. `token`: a JSON Web Token; `tls`: for https."""

    def __init__(self, url: str, base: str = BASE, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Ending(USAGE, f"--admin-url {url}: write http://host:port")
        if "@" in urlsplit(url).netloc:
            raise Ending(USAGE, "--admin-url has a user or a password in it: give a token with --auth-token-file instead")
        self.url = url.rstrip("/")
        self._base = base
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls
        self.time_ms = 0
        """The broker's time at the last answer, to the second; 0 when it did not say."""
        self.unanswered: list[str] = []
        """Gaps of the last answer: the instances of a coordinator that did not answer, and the reasons."""

    def ask(self, method: str, path: str) -> Any:
        """The decoded answer, None for an empty one. Raises Ending."""
        url = self.url + self._base + path
        request = urllib.request.Request(url, method=method, headers=self._headers)  # noqa: S310 - http(s), checked above
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=self._tls) as answer:  # noqa: S310 - as above
                body = answer.read()
                self.time_ms = _milliseconds(answer.headers["Date"])
                self.unanswered = answer.headers.get_all("Pulsar-Txn-Unanswered", [])
        except urllib.error.HTTPError as error:
            raise Answered(self.url, error.code, _reason(error.read())) from error
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise Ending(UNAVAILABLE, f"no broker answers at {self.url} ({reason}); check --admin-url") from error
        try:
            return json.loads(body) if body else None
        except ValueError as error:
            raise Ending(UNAVAILABLE, f"what answers at {self.url} is not a Pulsar admin API; check --admin-url") from error


def _milliseconds(date: str | None) -> int:
    return 0 if date is None else int(parsedate_to_datetime(date).timestamp() * 1000)


def _reason(body: bytes) -> str:
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = body.decode(errors="replace")[:200]
    return str(reason)
