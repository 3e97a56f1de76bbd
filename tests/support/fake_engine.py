"""A Docker engine that runs nothing: it answers like one, and keeps what it was asked to do."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_VERSION: Final = {"ApiVersion": "1.43", "MinAPIVersion": "1.24", "Version": "24.0.0", "Os": "linux", "Arch": "amd64"}
_ID: Final = "c0ffee" + "0" * 58


class FakeEngine:
    """`host` is for DOCKER_HOST. `created`: bodies of the containers made; `started` and `removed`: ids."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.started: list[str] = []
        self.removed: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"tcp://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON for a request; the path has no version before it and no query behind it."""
        match method, path.strip("/").split("/"):
            case _, ["_ping"]:
                return 200, "OK"
            case "GET", ["version"]:
                return 200, _VERSION | {"Platform": {"Name": "fake"}}
            case "GET", ["info"]:
                return 200, {"OperatingSystem": "fake", "ServerVersion": "24.0.0"}
            case "GET", ["images", *name, "json"]:
                return 200, {"Id": _ID, "RepoTags": ["/".join(name)]}
            case "POST", ["containers", "create"]:
                self.created.append(body)
                return 201, {"Id": _ID, "Warnings": []}
            case "POST", ["containers", container, "start"]:
                self.started.append(container)
                return 204, None
            case "DELETE", ["containers", container]:
                self.removed.append(container)
                return 204, None
            case "GET", ["containers", container, "json"]:
                return 200, {"Id": container, "Name": "/pulsar", "Config": {}, "NetworkSettings": {"Ports": {}}}
            case _:
                return 404, {"message": f"the fake engine does not know {method} {path}"}


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = re.sub(r"^/v[0-9.]+(?=/)", "", self.path.partition("?")[0])
            status, answer = engine.answer(self.command, path, json.loads(body or b"{}") or {})
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Api-Version", _VERSION["ApiVersion"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else data)

        do_GET = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    return Handler
