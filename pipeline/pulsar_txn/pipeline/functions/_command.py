"""The command `localrun`, with the flags of `pulsar-admin functions localrun` that mean something here.

Exit codes: 0 ended by SIGINT or SIGTERM (what was taken is finished first), 1 the run failed, 2 usage or configuration,
69 no broker answers, 130 ended at once by a second SIGINT (a second SIGTERM ends it as any process).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from pulsar_txn.client import AsyncClient, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication, BasicAuthentication
from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, OperationTimeout, PulsarError, UsageError
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.runner import FunctionRun

logger = logging.getLogger("pulsar_txn.pipeline.functions")

_FAILED: Final = 1
_USAGE: Final = 2
_UNAVAILABLE: Final = 69
_INTERRUPTED: Final = 130
TEXTS: Final = {
    "classname": "className",
    "py": "py",
    "output": "output",
    "topics_pattern": "topicsPattern",
    "output_serde_classname": "outputSerdeClassName",
    "log_topic": "logTopic",
    "processing_guarantees": "processingGuarantees",
    "subs_name": "subName",
    "subs_position": "subscriptionPosition",
    "tenant": "tenant",
    "namespace": "namespace",
    "name": "name",
    "fqfn": "fqfn",
    "dead_letter_topic": "deadLetterTopic",
}
NUMBERS: Final = {"parallelism": "parallelism", "timeout_ms": "timeoutMs", "max_message_retries": "maxMessageRetries"}
TRUTHS: Final = {
    "retain_ordering": "retainOrdering",
    "retain_key_ordering": "retainKeyOrdering",
    "cleanup_subscription": "cleanupSubscription",
}
DOCUMENTS: Final = {
    "user_config": "userConfig",
    "secrets": "secrets",
    "custom_serde_inputs": "customSerdeInputs",
    "transaction": "transaction",
    "state": "state",
    "window_config": "windowConfig",
}


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m pulsar_txn.pipeline.functions") -> int:
    """Run the command; the exit code. `program` is what the user has typed, for the usage."""
    parser = _parser(program)
    told = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stand_in_for_pulsar()
    try:
        asyncio.run(_localrun(told))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except UsageError as error:
        return _say(error, _USAGE)
    except (ConnectionLost, OperationTimeout) as error:
        return _say(error, _UNAVAILABLE)
    except (PulsarError, OSError) as error:
        return _say(error, _FAILED)
    except Exception:
        logger.exception("the function failed, and localrun ends")
        return _FAILED
    return 0


def _say(error: Exception, code: int) -> int:
    sys.stderr.write(f"localrun: {error}\n")
    return code


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description="Pulsar Functions in Python.")
    command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "localrun", help="run a function in this process", epilog="A flag overrules the same key of the file."
    )
    command.add_argument("--function-config-file", help="YAML with the official keys")
    command.add_argument("--broker-service-url", default="pulsar://localhost:6650")
    command.add_argument("--coordinator", help="URL of a coordinator beside the cluster; else the brokers' own are used")
    command.add_argument("--cluster", default="", help="the cluster's name at that coordinator")
    command.add_argument("--client-auth-plugin", help="a Java class name of token, basic or TLS authentication")
    command.add_argument("--client-auth-params", help="token:…, file:///…, tlsCertFile:…,tlsKeyFile:…, or JSON")
    command.add_argument("--tls-trust-cert-path")
    command.add_argument("--tls-allow-insecure", type=_truth, nargs="?", const=True, default=False)
    command.add_argument("--hostname-verification-enabled", type=_truth, nargs="?", const=True, default=True)
    command.add_argument("--inputs", "-i", help="topics, separated by commas")
    command.add_argument("--output", "-o")
    for name in (*TEXTS, *DOCUMENTS):
        if name != "output":
            command.add_argument(f"--{name.replace('_', '-')}", help="JSON" if name in DOCUMENTS else None)
    for name in NUMBERS:
        command.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name in TRUTHS:
        command.add_argument(f"--{name.replace('_', '-')}", type=_truth, nargs="?", const=True)
    return parser


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def config_of(told: argparse.Namespace) -> FunctionConfig:
    """The file's configuration, overruled by flags; InvalidConfiguration."""
    return FunctionConfig.from_mapping(keys_of(told))


def keys_of(told: argparse.Namespace) -> dict[str, Any]:
    """The keys of the file, overruled by flags; InvalidConfiguration."""
    flags: dict[str, Any] = {}
    for names in (TEXTS, NUMBERS, TRUTHS):
        flags |= {key: value for name, key in names.items() if (value := getattr(told, name)) is not None}
    for name, key in DOCUMENTS.items():
        if (text := getattr(told, name)) is not None:
            flags[key] = _document(f"--{name.replace('_', '-')}", text)
    if told.inputs is not None:
        flags["inputs"] = told.inputs.split(",")
    keys: dict[str, Any] = {}
    if told.function_config_file is not None:
        try:
            keys = FunctionConfig.read(told.function_config_file)
        except OSError as error:
            text = f"--function-config-file {told.function_config_file} cannot be read: {error.strerror}"
            raise InvalidConfiguration(text) from error
    return keys | flags


def _document(flag: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{flag} is no JSON: {error}") from None  # the error has the text


def authentication_of(plugin: str | None, params: str | None) -> Authentication | None:
    """Authentication by `--client-auth-plugin` and `--client-auth-params`; InvalidConfiguration for other methods."""
    if not plugin and not params:
        return None
    text = params or ""
    kind = (plugin or "AuthenticationToken").rpartition(".")[2].removeprefix("Authentication").lower()
    pairs = _document("--client-auth-params", text) if text.startswith("{") else _pairs(text)
    if kind == "token":
        if text.startswith("file:"):
            return TokenAuthentication.from_file(Path(text.removeprefix("file:").replace("///", "/", 1)))
        return TokenAuthentication(str(pairs.get("token", text)))
    if kind == "basic":
        return BasicAuthentication(str(pairs.get("userId", "")), str(pairs.get("password", "")))
    if kind == "tls":
        return TlsAuthentication(pairs.get("tlsCertFile"), pairs.get("tlsKeyFile"))
    raise InvalidConfiguration(
        "this --client-auth-plugin is not supported",
        hint="token, basic and TLS are; credentials belong into --client-auth-params; for others write a program with run()",
    )


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, colon, value in (each.partition(":") for each in text.split(",")) if colon}


async def _localrun(told: argparse.Namespace) -> None:
    stop = asyncio.Event()
    client = AsyncClient(
        told.broker_service_url,
        authentication=authentication_of(told.client_auth_plugin, told.client_auth_params),
        tls_trust_certs_file=told.tls_trust_cert_path,
        tls_allow_insecure_connection=told.tls_allow_insecure,
        tls_validate_hostname=told.hostname_verification_enabled,
        coordinator=told.coordinator,
        cluster=told.cluster,
    )
    async with client:
        run = FunctionRun(client, config_of(told), stop=stop)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, _end, loop, stop)
            except NotImplementedError:
                raise UsageError(
                    "this system cannot end a function by a signal", hint="run localrun on Linux or macOS, or in WSL"
                ) from None
        stats = await run.run()
    logger.info("ended: %s", json.dumps(attrs.asdict(stats)))


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    logger.info("ending after the messages in hand; a second signal ends at once")
    stop.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)


def stand_in_for_pulsar() -> None:
    """Stand in for the official package where it is absent: `import pulsar` in a function's file means `compat`."""
    if "pulsar" in sys.modules or importlib.util.find_spec("pulsar") is not None:
        return
    from pulsar_txn import compat
    from pulsar_txn.compat import functions
    from pulsar_txn.compat.functions import context, function, serde

    sys.modules |= {"pulsar": compat, "pulsar.functions": functions}
    sys.modules |= {f"pulsar.functions.{each.__name__.rpartition('.')[2]}": each for each in (context, function, serde)}
