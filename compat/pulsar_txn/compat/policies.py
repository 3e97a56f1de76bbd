"""Policies, loggers, service descriptions and ways to prove who we are, under the official names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import attrs

from pulsar_txn import client as ours
from pulsar_txn.client import authentication, options
from pulsar_txn.compat._arguments import check, dead
from pulsar_txn.compat.enums import KeySharedMode, LoggerLevel
from pulsar_txn.compat.exceptions import not_supported


class Authentication:
    """Base; the official one loads native libraries, which is not supported here."""

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:  # noqa: N803 - the official names
        raise not_supported(
            f"the native authentication plug-in {dynamicLibPath}",
            "use AuthenticationToken with a function, or an Authentication of pulsar_txn.client",
        )

    def native(self) -> authentication.Authentication:
        """For the client: what it is given, made again for each."""
        return cast("Callable[[], authentication.Authentication]", vars(self)["_make"])()


class AuthenticationToken(Authentication):
    """A token, or a function that returns the current one."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise ValueError("token must be str, or a function that returns str")  # noqa: TRY004 - the official client's class
        self._make = lambda: ours.TokenAuthentication(token)


class AuthenticationTLS(Authentication):
    """The client's certificate."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check(str, certificate_path, "certificate_path")
        check(str, private_key_path, "private_key_path")
        self._make = lambda: ours.TlsAuthentication(certificate_path, private_key_path)


@attrs.frozen
class _NamedBasic:
    """User and password under a method name of the cluster's own."""

    inner: authentication.BasicAuthentication
    method_name: str

    def data(self) -> bytes:
        """`user:password`."""
        return self.inner.data()


class AuthenticationBasic(Authentication):
    """User name and password; or both, and perhaps `method`, in a JSON text."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            given = _json(auth_params_string)
            username, password = given.get("username"), given.get("password")
            method = given.get("method", method)
        check(str, username, "username")
        check(str, password, "password")
        check(str, method, "method")
        user, secret = cast("str", username), cast("str", password)
        self._make = lambda: _NamedBasic(authentication.BasicAuthentication(user, secret), method)


class AuthenticationOauth2(Authentication):
    """OAuth 2.0 client credentials, as JSON: `issuer_url`, `private_key` (a key file) or `client_id` and `client_secret`,
    `audience`, `scope`."""

    def __init__(self, auth_params_string: str) -> None:
        given = _json(auth_params_string)
        issuer, audience, scope = given.get("issuer_url", ""), given.get("audience"), given.get("scope")
        if "private_key" in given:
            self._make = lambda: authentication.OAuth2Authentication.from_key_file(
                given["private_key"], issuer_url=issuer, audience=audience, scope=scope
            )
        else:
            if not {"client_id", "client_secret"} <= given.keys():
                raise ValueError("auth_params_string needs private_key, or client_id and client_secret")
            self._make = lambda: authentication.OAuth2Authentication(
                issuer,
                client_id=given["client_id"],
                client_secret=given["client_secret"],
                audience=audience,
                scope=scope,
            )


class AuthenticationAthenz(Authentication):
    """Not supported."""

    def __init__(self, auth_params_string: str) -> None:
        raise not_supported("Athenz", "use AuthenticationToken with a function that gets the role token")


def _json(text: object) -> dict[str, Any]:
    check(str, text, "auth_params_string")
    try:
        given = json.loads(cast("str", text))
    except ValueError as error:
        raise ValueError(f"auth_params_string must be JSON: {error}") from None  # the error has the text
    if not isinstance(given, dict):
        raise ValueError("auth_params_string must be a JSON object")  # noqa: TRY004 - the official client's class
    return given


@attrs.frozen
class ConsumerBatchReceivePolicy:
    """Bounds at which `batch_receive` returns: messages, bytes or milliseconds; 0 or less: no such bound."""

    max_num_message: int
    max_num_bytes: int
    timeout_ms: int

    def __attrs_post_init__(self) -> None:
        if self.max_num_message <= 0 and self.max_num_bytes <= 0 and self.timeout_ms <= 0:
            raise ValueError("at least one of max_num_message, max_num_bytes and timeout_ms must be more than 0")

    def policy(self) -> ConsumerBatchReceivePolicy:
        """For the client: itself."""
        return self


class ConsumerKeySharedPolicy:
    """Way in which a Key_Shared subscription divides keys."""

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        if key_shared_mode == KeySharedMode.Sticky and sticky_ranges is None:
            raise ValueError("KeySharedMode.Sticky needs sticky_ranges")
        for start, end in sticky_ranges or ():
            if not 0 <= start <= end <= 65535:
                raise ValueError(f"a sticky range is within 0 to 65535, not {start} to {end}")
        self._mode = key_shared_mode
        self._out_of_order = allow_out_of_order_delivery
        self._ranges = list(sticky_ranges or [])

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """Mode of the ranges: by the broker, or fixed."""
        return self._mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """True if order may suffer when consumers come."""
        return self._out_of_order

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The fixed ranges of slots, both ends included."""
        return self._ranges

    def policy(self) -> ours.KeySharedPolicy:
        """For the client: ours."""
        return ours.KeySharedPolicy(tuple(self._ranges), allow_out_of_order=self._out_of_order)


class ConsumerDeadLetterPolicy:
    """Fate of messages that fail again and again."""

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        if max_redeliver_count is None or max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be at least 1")
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic or ""
        self.initial_subscription_name = initial_subscription_name or ""

    def policy(self) -> ours.DeadLetterPolicy:
        """For the client: ours."""
        topic, subscription = self.dead_letter_topic or None, self.initial_subscription_name or None
        return ours.DeadLetterPolicy(
            max_redeliver_count=self.max_redeliver_count, dead_letter_topic=topic, initial_subscription=subscription
        )


class CryptoKeyReader:
    """Keys of end-to-end encryption, from two PEM files."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        check(str, public_key_path, "public_key_path")
        check(str, private_key_path, "private_key_path")
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path


class ConsoleLogger:
    """Accepted, without effect: this client logs through `logging`."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        check(LoggerLevel, log_level, "log_level")
        self.log_level = log_level


class FileLogger:
    """Accepted, without effect: this client logs through `logging`."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        check(LoggerLevel, log_level, "log_level")
        check(str, log_file, "log_file")
        self.log_level = log_level
        self.log_file = log_file


@attrs.frozen
class ServiceInfo:
    """Address of a cluster."""

    service_url: str
    authentication: Authentication | None = attrs.field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None

    @property
    def use_tls(self) -> bool:
        """Tell by the URL's scheme."""
        return self.service_url.startswith(("pulsar+ssl://", "https://"))


class ServiceInfoProvider:
    """Not supported by `Client`; here so that classes that derive from it can be imported."""

    def initial_service_info(self) -> ServiceInfo:
        """Override this method."""
        raise not_supported("ServiceInfoProvider", "give the service URL")

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Override this method."""
        raise not_supported("ServiceInfoProvider", "give the service URL")

    def close(self) -> None:
        """Nothing to close."""


class AutoClusterFailover:
    """Given to `Client` in place of the service URL: it moves to another cluster when the one it uses is gone, and back.

    Thresholds are probes in a row, one every `check_interval_ms`. All clusters take the same credentials and authorities.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check(ServiceInfo, primary, "primary")
        check(list, secondary, "secondary")
        if not secondary:
            raise ValueError("secondary needs at least one ServiceInfo")
        for each in secondary:
            check(ServiceInfo, each, "secondary")
        numbers = {
            "check_interval_ms": check_interval_ms,
            "failover_threshold": failover_threshold,
            "switch_back_threshold": switch_back_threshold,
        }
        for name, number in numbers.items():
            check(int, number, name)
            if number <= 0:
                raise ValueError(f"{name} must be more than 0")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def policy(self) -> options.AutoClusterFailover:
        """For the client: ours. OperationNotSupported when the clusters differ in more than their URL."""
        ways = {(id(each.authentication), each.tls_trust_certs_file_path) for each in (self.primary, *self.secondary)}
        if len(ways) > 1:
            raise not_supported("AutoClusterFailover with several credentials", "give every ServiceInfo the same")
        seconds = self.check_interval_ms / 1000
        urls: Any = [each.service_url for each in self.secondary]  # mypy takes the converter `tuple` for generic
        return options.AutoClusterFailover(
            primary=self.primary.service_url,
            secondaries=urls,
            check_interval=seconds,
            failover_delay=seconds * (self.failover_threshold - 1),
            switch_back_delay=seconds * (self.switch_back_threshold - 1),
        )


_OURS: Final = "pulsar_txn.client"


class _Forwarding(logging.Handler):
    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self._target.isEnabledFor(record.levelno):
            self._target.handle(record)


def forward(logger: Any) -> Callable[[], None]:
    """Hand on what is logged, to one of Python's loggers; returns what ends it. ValueError for anything that is no logger."""
    if logger is None:
        return lambda: None
    if isinstance(logger, (ConsoleLogger, FileLogger)):
        dead("logger", logger, None, "this client logs through Python's logging, as `pulsar_txn.client`")
        return lambda: None
    if not isinstance(logger, logging.Logger):
        raise ValueError("logger must be None, a logging.Logger, ConsoleLogger or FileLogger")  # noqa: TRY004 - the official client's class
    handler = _Forwarding(logger)
    logging.getLogger(_OURS).addHandler(handler)
    return lambda: logging.getLogger(_OURS).removeHandler(handler)
