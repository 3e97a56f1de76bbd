"""`pulsar-txn transactions list|show|abort`: the admin API of a running broker, ours or Apache Pulsar's."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import click

from .exits import REFUSED, UNAVAILABLE, USAGE, Ending

_BASE: Final = "/admin/v3/transactions"
_ID: Final = re.compile(r"\(?\s*(\d+)\s*[,:]\s*(\d+)\s*\)?")
_TIMEOUT_SECONDS: Final = 30.0


class Admin:
    """Requests to one admin URL, below the path `base`."""

    def __init__(self, url: str, base: str = _BASE) -> None:
        if not url.startswith(("http://", "https://")):
            raise Ending(USAGE, f"--admin-url {url}: write http://host:port")
        self.url = url.rstrip("/")
        self._base = base
        self.time_ms = 0
        """The broker's time at the last answer, to the second; 0 when it did not say."""

    def ask(self, method: str, path: str) -> Any:
        """The decoded answer, None for an empty one. Raises Ending."""
        request = urllib.request.Request(self.url + self._base + path, method=method)  # noqa: S310 - http(s), checked above
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
                body = answer.read()
                self.time_ms = _milliseconds(answer.headers["Date"])
        except urllib.error.HTTPError as error:
            raise Ending(REFUSED, f"the broker at {self.url} answers {error.code}: {_reason(error.read())}") from error
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


def _txn_id(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    match = _ID.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a transaction id; write 3:17 or (3,17)")
    return int(match[1]), int(match[2])


@click.group("transactions")
@click.option(
    "--admin-url", default="http://127.0.0.1:8080", envvar="PULSAR_ADMIN_URL", show_default=True, help="HTTP of the broker."
)
@click.pass_context
def command(ctx: click.Context, admin_url: str) -> None:
    """Look at open transactions of a running broker, and abort them."""
    ctx.obj = Admin(admin_url)


@command.command("list")
@click.option("--coordinator", type=click.IntRange(0), help="Only of this coordinator.")
@click.option("--older-than", "seconds", type=click.FloatRange(0), default=0.0, help="Only those that are so many seconds old.")
@click.option("--json", "as_json", is_flag=True, help="The broker's answer as it is.")
@click.pass_obj
def list_open(admin: Admin, coordinator: int | None, seconds: float, as_json: bool) -> None:
    """List transactions that are open or being ended."""
    query = "" if coordinator is None else f"?coordinatorId={coordinator}"
    # The age is judged here: stock brokers compare the number in this path with the timeout of a transaction.
    found: dict[str, Any] = admin.ask("GET", f"/slowTransactions/0{query}") or {}
    opened_until_ms = admin.time_ms - seconds * 1000
    if seconds and admin.time_ms:
        found = {txn_id: txn for txn_id, txn in found.items() if txn["openTimestamp"] <= opened_until_ms}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for txn_id, txn in sorted(found.items(), key=lambda item: item[1].get("openTimestamp", 0)):
        click.echo(_line(txn_id, txn))
    if not found:
        click.echo("no transaction is open", err=True)


def _line(txn_id: str, txn: dict[str, Any]) -> str:
    opened = datetime.fromtimestamp(txn["openTimestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
    topics = len(txn.get("producedPartitions") or {})
    subscriptions = sum(len(each) for each in (txn.get("ackedPartitions") or {}).values())
    timeout = f"timeout {txn['timeoutAt'] / 1000:g} s"
    return f"{txn_id}\t{txn['status']}\topened {opened}\t{timeout}\t{topics} partitions, {subscriptions} subscriptions"


@command.command("show")
@click.argument("txn_id", callback=_txn_id)
@click.pass_obj
def show(admin: Admin, txn_id: tuple[int, int]) -> None:
    """Show one transaction that is open or being ended. Exit code 1: no transaction has this id."""
    click.echo(json.dumps(admin.ask("GET", f"/transactionMetadata/{txn_id[0]}/{txn_id[1]}"), indent=2))


@command.command("abort")
@click.argument("txn_id", callback=_txn_id)
@click.pass_obj
def abort(admin: Admin, txn_id: tuple[int, int]) -> None:
    """Abort a transaction of any client. Exit code 1: it does not exist, or is being committed."""
    admin.ask("POST", f"/abortTransaction/{txn_id[0]}/{txn_id[1]}")
    click.echo(f"({txn_id[0]},{txn_id[1]}) is aborted")
