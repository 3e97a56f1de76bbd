"""A stock standalone that asks who comes, and what they may: TLS, tokens and certificates, authorization.

Superusers are `admin`, `broker` and `coordinator`; `app` may produce and consume in public/default; others may nothing.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from credentials import SECRET, Papers, token
from stock_pulsar import StockPulsar, free_port

SUPERUSERS: Final = "admin,broker,coordinator"
_TOKEN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


class SecuredStock:
    """A server of `version`. Certificates and tokens are in `folder`."""

    def __init__(self, version: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.papers = Papers(folder)
        self.folder = folder
        self._tls_port = free_port()
        conf = {
            "authenticationEnabled": "true",
            "authenticationProviders": f"{_PROVIDER}Token,{_PROVIDER}Tls",
            "authenticationRefreshCheckSeconds": "1",
            "authorizationEnabled": "true",
            "superUserRoles": SUPERUSERS,
            "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
            "brokerServicePortTls": str(self._tls_port),
            "tlsCertificateFilePath": str(self.papers.server[0]),
            "tlsKeyFilePath": str(self.papers.server[1]),
            "tlsTrustCertsFilePath": str(self.papers.trust),
            "brokerClientAuthenticationPlugin": _TOKEN,
            "brokerClientAuthenticationParameters": f"token:{token('broker')}",
        }
        self.server = StockPulsar(version, data_dir=folder / "data", conf=conf, token=token("admin"))

    @property
    def service_url(self) -> str:
        """`pulsar+ssl://…`."""
        return f"pulsar+ssl://127.0.0.1:{self._tls_port}"

    @property
    def trust(self) -> str:
        """The file with the authority of its certificate."""
        return str(self.papers.trust)

    def __enter__(self) -> Self:
        self.server.start()
        try:
            self.ask("POST", "/admin/v2/namespaces/public/default/permissions/app", ["produce", "consume"])
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()

    def token_file(self, role: str, **claims: Any) -> Path:
        """A file with a token of a role; it is written anew by each call."""
        path = self.folder / f"{role}.jwt"
        path.write_text(token(role, **claims), encoding="utf-8")
        return path

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """A request to its admin API, as operator."""
        headers = {"Authorization": f"Bearer {token('admin')}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.admin_url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def cluster_keys(self, name: str, token_file: Path | None = None, role: str = "coordinator") -> dict[str, str]:
        """The keys of coordinator.conf for this cluster; without a token file a certificate says who we are."""
        keys = {"tlsTrustCertsFilePath": self.trust, "adminUrl": self.server.admin_url}
        if token_file is not None:
            keys |= {"authPlugin": "token", "authParams": f"file://{token_file}"}
        else:
            certificate, key = self.papers.of(role)
            keys |= {"authPlugin": "tls", "authParams": f"tlsCertFile:{certificate},tlsKeyFile:{key}"}
            del keys["adminUrl"]  # its plain port knows no certificates
        return {f"cluster.{name}.{key}": value for key, value in keys.items()}
