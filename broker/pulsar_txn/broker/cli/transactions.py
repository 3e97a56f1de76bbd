"""`pulsar-txn transactions …`: over the HTTP of a running broker, ours or Apache Pulsar's, or of a coordinator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import click

from .admin_requests import Admin, Answered, tls_with, token_in
from .exits import REFUSED, UNAVAILABLE, Ending

_ID: Final = re.compile(r"\(?\s*(\d+)\s*[,:]\s*(\d+)\s*\)?")
_PATH: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_NOT_FOUND: Final = 404


def _txn_id(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    match = _ID.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a transaction id; write 3:17 or (3,17)")
    return int(match[1]), int(match[2])


@click.group("transactions")
@click.option(
    "--admin-url",
    default="http://127.0.0.1:8080",
    envvar="PULSAR_ADMIN_URL",
    show_default=True,
    help="HTTP of the broker or coordinator.",
)
@click.option("--auth-token-file", type=click.Path(path_type=Path), help="File with a JSON Web Token.")
@click.option("--tls-trust-certs-file", type=_PATH, help="PEM file with the authority of the server's certificate.")
@click.option("--tls-certificate-file", type=_PATH, help="PEM file with the certificate to show.")
@click.option("--tls-key-file", type=_PATH, help="PEM file with its key.")
@click.pass_context
def command(
    ctx: click.Context,
    admin_url: str,
    auth_token_file: Path | None,
    tls_trust_certs_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
) -> None:
    """Look at transactions of a running broker, or of a coordinator beside clusters, and end them."""
    tls = tls_with(tls_trust_certs_file, tls_certificate_file, tls_key_file) if admin_url.startswith("https:") else None
    ctx.obj = Admin(admin_url, token=token_in(auth_token_file), tls=tls)


@command.command("list")
@click.option("--coordinator", type=click.IntRange(0), help="Only of this coordinator.")
@click.option("--older-than", "seconds", type=click.FloatRange(0), default=0.0, help="Only those that are so many seconds old.")
@click.option("--prepared", is_flag=True, help="Only prepared ones, which wait for commit or abort as long as it takes.")
@click.option("--parked", is_flag=True, help="Only parked ones: their check group did not know, and an operator decides.")
@click.option("--held", is_flag=True, help="Only held ones: their log was restored, and an administrator decides.")
@click.option("--json", "as_json", is_flag=True, help="The broker's answer as it is.")
@click.pass_obj
def list_open(
    admin: Admin, coordinator: int | None, seconds: float, prepared: bool, parked: bool, held: bool, as_json: bool
) -> None:
    """List transactions that are open, prepared, parked, held or being ended.

    Exit code 69: an instance of the coordinator has not answered, and what it leads is not in the list.
    """
    chosen = {"coordinatorId": coordinator} if coordinator is not None else {}
    kinds = [kind for kind, only in (("prepared", prepared), ("parked", parked), ("held", held)) if only]
    query = "?" + urlencode(chosen | dict.fromkeys(kinds, "true"))
    # The age is judged here: stock brokers compare the number in this path with the timeout of a transaction.
    found: dict[str, Any] = admin.ask("GET", f"/slowTransactions/0{query.removesuffix('?')}") or {}
    for kind in kinds:  # a stock broker knows none of these words
        found = {txn_id: txn for txn_id, txn in found.items() if txn.get(kind) or txn["status"].lower() == kind}
    opened_until_ms = admin.time_ms - seconds * 1000
    if seconds and admin.time_ms:
        found = {txn_id: txn for txn_id, txn in found.items() if txn["openTimestamp"] <= opened_until_ms}
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print(found, " and ".join(kinds) or "open")
    if admin.unanswered:
        raise Ending(UNAVAILABLE, f"the list is not whole: {'; '.join(admin.unanswered)}")


def _print(found: dict[str, Any], what: str) -> None:
    for txn_id, txn in sorted(found.items(), key=lambda item: item[1].get("openTimestamp", 0)):
        click.echo(_line(txn_id, txn))
    if not found:
        click.echo(f"no transaction is {what}", err=True)


def _line(txn_id: str, txn: dict[str, Any]) -> str:
    opened = datetime.fromtimestamp(txn["openTimestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
    topics = len(txn.get("producedPartitions") or {})
    subscriptions = sum(len(each) for each in (txn.get("ackedPartitions") or {}).values())
    timeout = f"timeout {txn['timeoutAt'] / 1000:g} s"
    line = f"{txn_id}\t{txn['status']}\topened {opened}\t{timeout}\t{topics} partitions, {subscriptions} subscriptions"
    return "\t".join([line, *_own_fields(txn)])


def _own_fields(txn: dict[str, Any]) -> Iterator[str]:
    """Lines that only our servers can fill."""
    if txn.get("prepared"):
        prepared = datetime.fromtimestamp(txn["modifiedAt"] / 1000, UTC).isoformat(timespec="milliseconds")
        yield f"prepared {prepared}, waits for its end"
    if "heldBecause" in txn:
        yield f"held: {txn['heldBecause']}; decide by pulsar-txn transactions commit or abort"
    if txn.get("parked"):
        parked = datetime.fromtimestamp(txn["parkedAt"] / 1000, UTC).isoformat(timespec="milliseconds")
        yield f"parked {parked}, waits for an operator"
    if "checkGroup" in txn:
        yield f"check group {txn['checkGroup']}, {txn['checkCount']} questions begun"


@command.command("show")
@click.argument("txn_id", callback=_txn_id)
@click.pass_obj
def show(admin: Admin, txn_id: tuple[int, int]) -> None:
    """Show one transaction that is open or being ended. Exit code 1: no transaction has this id."""
    click.echo(json.dumps(admin.ask("GET", f"/transactionMetadata/{txn_id[0]}/{txn_id[1]}"), indent=2))


@command.command("abort")
@click.argument("txn_id", callback=_txn_id)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def abort(admin: Admin, txn_id: tuple[int, int], yes: bool) -> None:
    """Abort a transaction of any client, after a question. Exit code 1: it does not exist, or is being committed."""
    name = f"({txn_id[0]},{txn_id[1]})"
    if not yes and not click.confirm(f"Abort {name}, and with it everything that was sent and acknowledged in it?", err=True):
        raise Ending(REFUSED, f"{name} is left as it is")
    admin.ask("POST", f"/abortTransaction/{txn_id[0]}/{txn_id[1]}")
    click.echo(f"{name} is aborted")


@command.command("commit")
@click.argument("txn_id", callback=_txn_id)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def commit(admin: Admin, txn_id: tuple[int, int], yes: bool) -> None:
    """Commit a prepared, parked or held transaction, after a question. Exit code 1: it does not exist, or is none of that.

    Whoever does that has to know that the other system has committed its part. One that is held may have been aborted or
    committed before its log was restored: its participants tell (pulsar-txn doctor).
    """
    name = f"({txn_id[0]},{txn_id[1]})"
    if not yes and not click.confirm(f"Commit {name}, and with it everything that was sent and acknowledged in it?", err=True):
        raise Ending(REFUSED, f"{name} is left as it is")
    admin.ask("POST", f"/commitTransaction/{txn_id[0]}/{txn_id[1]}")
    click.echo(f"{name} is committed")


@command.command("resume")
@click.argument("txn_id", callback=_txn_id)
@click.pass_obj
def resume(admin: Admin, txn_id: tuple[int, int]) -> None:
    """Ask the check group of a parked transaction again, from the first question on. Exit code 1: it is not parked.

    Its timeout begins again: while no member of the group lives for so long, it is aborted.
    """
    admin.ask("POST", f"/resumeTransaction/{txn_id[0]}/{txn_id[1]}")
    click.echo(f"({txn_id[0]},{txn_id[1]}) is resumed: its check group is asked")


@command.command("describe")
@click.argument("transactional_id")
@click.option("--owner", help="The role that has the id, where it is another one's.")
@click.pass_obj
def describe(admin: Admin, transactional_id: str, owner: str | None) -> None:
    """Show a transactional id: its newest epoch, when it was used last, and what its instances have open.

    Exit code 1: nothing is known of it. Exit code 69: an instance of the coordinator has not answered.
    """
    query = "" if owner is None else f"?{urlencode({'owner': owner})}"
    found = admin.ask("GET", f"/transactionalIds/{quote(transactional_id, safe='')}{query}") or []
    if admin.unanswered:
        raise Ending(UNAVAILABLE, f"the answer is not whole: {'; '.join(admin.unanswered)}")
    if not found:
        raise Ending(REFUSED, f"nothing is known of transactional id {transactional_id!r}; if another role has it, say --owner")
    click.echo(json.dumps(found, indent=2))


@command.command("timeline")
@click.argument("txn_id", callback=_txn_id)
@click.option("--json", "as_json", is_flag=True, help="The coordinator's answer as it is.")
@click.pass_obj
def timeline(admin: Admin, txn_id: tuple[int, int], as_json: bool) -> None:
    """Show what happened to a transaction: of one that is open, or that has ended not long ago.

    Coordinators beside clusters keep timelines; brokers do not. Exit code 1: nothing is known of it.
    """
    try:
        found = admin.ask("GET", f"/timeline/{txn_id[0]}/{txn_id[1]}")
    except Answered as answered:
        if answered.status == _NOT_FOUND and "is known of" not in answered.sentence:
            raise Ending(REFUSED, f"{admin.url} keeps no timelines; `pulsar-txn coordinator` does") from answered
        raise
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines_of(found)))


def lines_of(timeline: dict[str, Any]) -> Iterator[str]:
    """One line for the transaction, one for each step with the time since the one before, and one for how long it took."""
    yield f"{timeline['txnId']}\t{timeline['state']}{''.join(_whose(timeline))}"
    before = 0
    for event in timeline["events"]:
        at = event["at"]
        since = f"+{at - before} ms" if at and before else ""
        yield f"  {_time(at)}\t{since}\t{_words(event, timeline)}"
        before = at or before
    if timeline["durationsMs"]:
        yield "  " + ", ".join(f"{name} {milliseconds} ms" for name, milliseconds in timeline["durationsMs"].items())
    if not timeline["isWhole"]:
        yield "  A snapshot has taken the place of earlier records: some times, and who decided, are not known any more."


def _whose(timeline: dict[str, Any]) -> Iterator[str]:
    if "owner" in timeline:
        yield f"\towner {timeline['owner']}"
    if "transactionalId" in timeline:
        yield f"\ttransactional id {timeline['transactionalId']}, epoch {timeline['epoch']}"
    if "incarnation" in timeline:
        yield f"\tclient {timeline['incarnation']}"


def _time(at_ms: int) -> str:
    if not at_ms:
        return "(time unknown)          "
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _words(event: dict[str, Any], timeline: dict[str, Any]) -> str:
    match event["event"]:
        case "begun":
            return f"begun, timeout {timeline['timeoutMs'] / 1000:g} s"
        case "registered":
            return "registered " + "; ".join(map(_participant, event["participants"]))
        case "checked":
            return f"members of check group {timeline.get('checkGroup', '?')} have begun {event['count']} questions by then"
        case "prepared":
            return "prepared: waits for its end"
        case "held":
            return f"held ({event['because']}): waits for an administrator"
        case "released":
            return "released: goes on"
        case "parked":
            return "parked: its check group did not know, waits for an operator"
        case "resumed":
            return "resumed: its check group is asked again"
        case "decided":
            return f"{event['outcome']} decided by {event['by']}"
        case "told":
            attempts = "" if event["attempts"] == 1 else f" after {event['attempts']} attempts"
            missing = "; there is no such topic now: this part is gone with it" if event.get("topicMissing") else ""
            return f"told {_participant(event)}{attempts}{missing}"
        case other:
            return str(other)


def _participant(named: dict[str, Any]) -> str:
    subscription = f" {named['subscription']}" if "subscription" in named else ""
    return f"{named['cluster']} {named['topic']}{subscription}"
