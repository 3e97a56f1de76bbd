"""What of the outside world a Python source touches, found in its syntax tree: clocks, randomness, sockets, threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

MODULES: Final = frozenset(
    {"time", "random", "secrets", "uuid", "socket", "threading", "concurrent.futures", "multiprocessing"}
)

TYPES: Final = frozenset({"uuid.UUID"})
"""Names of those modules that are mere types."""

NAMES_OF: Final = {
    "os": frozenset({"urandom", "getrandom", "fork"}),
    "asyncio": frozenset(
        {"open_connection", "start_server", "open_unix_connection", "start_unix_server", "to_thread", "create_subprocess_exec"}
    ),
    "datetime.datetime": frozenset({"now", "utcnow", "today"}),
    "aiohttp.web": frozenset({"TCPSite", "SockSite", "UnixSite", "run_app"}),
}

LOOP_METHODS: Final = frozenset(
    {
        "create_connection",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "create_datagram_endpoint",
        "connect_accepted_socket",
        "run_in_executor",
        "sock_connect",
        "getaddrinfo",
        "subprocess_exec",
    }
)
"""Methods of an event loop that open connections or threads; known by their name, whatever they are called on."""


def touches(source: str) -> list[str]:
    """What `source` touches, as "line: name", in the order of the lines."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    found = {*_imports(tree), *_uses(tree, aliases)}
    return [f"{line}: {name}" for line, name in sorted(found)]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _forbidden_module(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in TYPES:
                    continue
                if _forbidden_module(node.module) or _forbidden_module(name) or alias.name in NAMES_OF.get(node.module, ()):
                    yield node.lineno, name


def _forbidden_module(name: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in MODULES)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in this source, full name) of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0])
                for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _uses(tree: ast.Module, aliases: dict[str, str]) -> Iterator[tuple[int, str]]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = _full_name(node.value, aliases)
        if owner and node.attr in NAMES_OF.get(owner, ()):
            yield node.lineno, f"{owner}.{node.attr}"
        elif id(node) in called and node.attr in LOOP_METHODS and not _is_own_method(node):
            yield node.lineno, f"….{node.attr}"


def _is_own_method(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _full_name(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _full_name(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return None
