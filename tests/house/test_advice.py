"""What errors, help texts and pages advise exists: each command, option, extra and key is collected and tried."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pulsar_txn.broker.base.config import FIELDS, load
from pulsar_txn.broker.base.settings import ConfigError
from pulsar_txn.broker.cli.group import group
from pulsar_txn.pipeline.functions._command import _parser
from pulsar_txn.tc_service import config as coordinator

ROOT = Path(__file__).parents[2]
ROOMS = ("wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "broker", "client", "tc_service", "compat", "pipeline")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")) if not file.name.endswith("_pb2.py")]
COMMAND = re.compile(r"(?<![\w/.-])pulsar-txn((?: [a-z][a-z-]*)+)((?: [^\s`|;&]+)*)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
KEY = re.compile(r"\b([a-z]+[A-Z]\w*)=(?:true|false|[A-Z0-9])")
EXTRA = re.compile(r"(?:\.|pulsar-txn)\[([a-z0-9,]+)\]")
OTHERS = {
    "--archives", "--master", "--conf", "--packages", "--py-files", "--deploy-mode", "--files", "--supervise",  # spark-submit
    "--add-modules",  # java
}  # fmt: skip
"""Options of other programs that our texts name."""
OTHER_KEYS = {
    "brokerPublisherThrottlingMaxMessageRate", "acknowledgmentAtBatchIndexLevelEnabled", "topicLevelPoliciesEnabled",
    "systemTopicEnabled", "requireStable", "allowAutoTopicCreation", "authenticateOriginalAuthData", "zooKeeperServers",
}  # fmt: skip
"""Keys of stock Pulsar and of requests that our texts name."""


@functools.cache
def texts(file: Path) -> tuple[str, ...]:
    """What a program may show: its literals, f-strings with a mark for what is put in. Of a page, its lines."""
    return tuple(_texts(file))


def _texts(file: Path) -> Iterator[str]:
    if file.suffix == ".md":
        yield from file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def options_of(command: click.Command) -> set[str]:
    """Those of a command; of a group also those of its commands, which stand behind its own options."""
    found = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    if isinstance(command, click.Group) and command is not group:
        context = click.Context(command)
        for name in command.list_commands(context):
            found |= options_of(command.get_command(context, name) or command)
    return found


def found_command(words: list[str]) -> tuple[click.Command, int]:
    """The command that these words call, and how many of them are its name."""
    command: click.Command = group
    context = click.Context(group)
    for number, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, number
        inner = command.get_command(context, word)
        assert inner is not None, f"there is no command {' '.join(words[: number + 1])!r}"
        command = inner
    return command, len(words)


def every_option() -> set[str]:
    found: set[str] = set(_parser("pulsar-txn functions")._option_string_actions)
    for action in _parser("pulsar-txn functions")._subparsers._group_actions:
        for parser in action.choices.values():
            found |= set(parser._option_string_actions)
    waiting: list[click.Command] = [group]
    while waiting:
        command = waiting.pop()
        found |= options_of(command)
        if isinstance(command, click.Group):
            context = click.Context(command)
            waiting += [command.get_command(context, name) for name in command.list_commands(context)]
    return found


def called(line: str) -> Iterator[tuple[list[str], list[str]]]:
    """Words and options of each call of the script in a line."""
    for match in COMMAND.finditer(line):
        yield match[1].split(), [each.partition("=")[0] for each in match[2].split() if each.startswith("--")]


@pytest.mark.parametrize("file", [*PAGES, *SOURCES], ids=lambda file: str(file.relative_to(ROOT)))
def test_each_command_that_is_advised_exists_and_has_its_options(file):
    """Seen: `pulsar-txn broker`."""
    in_block = False
    for text in texts(file):
        if file.suffix == ".md" and text.lstrip().startswith("```"):
            in_block = not in_block
        calls = re.findall(r"`(pulsar-txn [^`]+)`", text)
        if in_block and re.match(r"\s*(\$ )?pulsar-txn ", text):
            calls = [text]
        for call in calls:
            for words, options in called(call):
                command, _ = found_command(words)
                missing = set(options) - options_of(command)
                assert not missing, f"{' '.join(words)} has no {missing}: {call}"


def test_each_command_shows_its_help():
    waiting = [[name] for name in group.list_commands(click.Context(group))]
    while waiting:
        words = waiting.pop()
        result = CliRunner().invoke(group, [*words, "--help"])
        assert result.exit_code == 0, result.output
        command, _ = found_command(words)
        if isinstance(command, click.Group):
            waiting += [[*words, name] for name in command.list_commands(click.Context(command))]


def test_each_option_that_an_error_advises_is_one_of_a_command():
    """Seen: `tls_trust_certs_file=` said by commands that had no such option."""
    known = every_option() | OTHERS
    for file in SOURCES:
        for text in texts(file):
            ours = "pulsar-admin " not in text and "bin/pulsar " not in text
            if ours and " " in text.strip():  # a sentence, and no option of a program that is started
                unknown = set(OPTION.findall(text)) - known
                assert not unknown, f"{file.relative_to(ROOT)}: {unknown} in {text!r}"


def test_each_key_that_an_error_advises_is_one_of_a_configuration():
    read = {text for file in SOURCES for text in texts(file) if re.fullmatch(r"[a-z]+[A-Z]\w*", text)}  # options of Spark
    keys = read | FIELDS.keys() | coordinator.FIELDS.keys() | coordinator.CLUSTER_FIELDS.keys() | OTHER_KEYS
    for file in SOURCES:
        for text in texts(file):
            unknown = set(KEY.findall(text)) - keys
            assert not unknown, f"{file.relative_to(ROOT)}: {unknown} in {text!r}"


def test_each_extra_that_is_advised_exists_and_is_installed_from_a_checkout():
    """Seen: `pip install 'pulsar-txn[spark]'`, although the package is on no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for file in [*PAGES, *SOURCES]:
        for text in texts(file):
            for extras in EXTRA.findall(text):
                unknown = set(extras.split(",")) - project["optional-dependencies"].keys()
                assert not unknown, f"{file.relative_to(ROOT)}: {text!r}"
            assert not re.search(r"pip install ['\"]?pulsar-txn\b", text), f"{file.relative_to(ROOT)}: {text!r}"


@pytest.mark.parametrize(("typed", "meant"), [("maxMessageSiz", "maxMessageSize"), ("typo", "docs/configuration.md")])
def test_a_key_of_the_command_line_that_nobody_knows_is_an_error_that_names_what_was_meant(typed, meant):
    """It was a warning among the first lines, and had no effect."""
    for loads in (load, coordinator.load):
        with pytest.raises(ConfigError, match=f"command line: there is no key {typed}") as raised:
            loads(None, {}, {typed: "1"})
        assert meant in str(raised.value) or loads is coordinator.load
    told = CliRunner().invoke(group, ["standalone", "--data", "/nowhere", "--set", f"{typed}=1"])
    assert told.exit_code == 2
    assert f"there is no key {typed}" in told.output
