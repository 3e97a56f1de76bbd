"""The command `pulsar-txn doctor`, found by the entry-point group `pulsar_txn.commands`, with what it shows.

Findings are lines for people, and JSON for programs. A cure is asked about first, unless `--yes` was given; one that guesses an
outcome needs `--abort-unknown` as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from pulsar_txn.broker.serving import OK, REFUSED, UNAVAILABLE, USAGE, Ending
from pulsar_txn.client import TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import AsyncioRuntime, Settings, TlsFiles, parse_service_url
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable, open_admin
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers, LookupFailed
from pulsar_txn.tc_service.cluster.participants import ParticipantRefused

from .cluster_reading import FORBIDDEN, ClusterReader, Examination, Scope, compare_with_coordinator
from .curing import Curing, NotCured
from .findings import Cure, Finding

_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


def lines(finding: Finding, now_ms: int) -> list[str]:
    """Lines of a finding for people: the fault, its age and what it blocks, and the remedy."""
    head = finding.what if finding.topic is None else f"{_location(finding)}: {finding.what}"
    facts = []
    if finding.since_ms > 1:
        facts.append(f"since {_time(finding.since_ms)} ({_age(now_ms - finding.since_ms)})")
    if finding.blocked:
        unit = "messages are not acknowledged" if finding.subscription is not None else "entries wait behind it"
        facts.append(f"{finding.blocked} {unit}")
    return [head, *(f"    {fact}" for fact in facts), f"    {finding.advice}"]


def as_dict(finding: Finding) -> dict[str, Any]:
    """The same for programs."""
    return {
        "kind": finding.kind,
        "topic": finding.topic,
        "subscription": finding.subscription,
        "txnId": None if finding.txn_id is None else str(finding.txn_id),
        "sinceMs": finding.since_ms if finding.since_ms > 1 else None,
        "blocked": finding.blocked,
        "what": finding.what,
        "advice": finding.advice,
        "cure": None if finding.cure is Cure.NOTHING else finding.cure.name.lower(),
    }


def question(finding: Finding) -> str:
    """Question to the operator before a cure."""
    what = finding.cure.value
    if finding.cure is Cure.ABORT:
        what += ", and lose its messages"
    elif finding.cure is Cure.SEARCH:
        what += ", so that their messages are delivered again"
    subject = "it" if finding.txn_id is None else f"the transaction {finding.txn_id}"
    return f"{_location(finding)}: cure {subject}? It means: {what}"


def _location(finding: Finding) -> str:
    return f"{finding.topic}" if finding.subscription is None else f"{finding.topic}, subscription {finding.subscription}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _age(age_ms: int) -> str:
    seconds = max(age_ms, 0) // 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


@attrs.frozen(kw_only=True)
class DoctorOptions:
    """Options of the command."""

    cluster: str
    admin_url: str
    settings: Settings
    scope: Scope
    as_json: bool
    cure: bool
    yes: bool
    abort_unknown: bool
    search: int
    coordinator: str | None
    coordinator_cluster: str | None


@click.command("doctor")
@click.option("--cluster", required=True, envvar="PULSAR_URL", help="Service URL, such as pulsar://host:6650.")
@click.option("--admin-url", envvar="PULSAR_ADMIN_URL", help="HTTP of a broker. Default: port 8080 (TLS: 8443) of the host.")
@click.option("--topic", "topics", multiple=True, help="Look at this topic alone. May be repeated.")
@click.option("--namespace", "namespaces", multiple=True, help="Look at tenant/namespace alone. May be repeated.")
@click.option(
    "--older-than", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds; younger is passed over."
)
@click.option("--entries", type=click.IntRange(1), default=1000, show_default=True, help="Entries of a topic to read at most.")
@click.option("--cure", is_flag=True, help="Cure what can be cured, after a question for each.")
@click.option("--yes", is_flag=True, help="With --cure: ask nothing where a log says the outcome, and abort nothing else.")
@click.option("--abort-unknown", is_flag=True, help="With --cure --yes: also abort what no coordinator knows.")
@click.option("--search", type=click.IntRange(1), default=1000, show_default=True, help="Ended ids to try on a subscription.")
@click.option("--coordinator", help="HTTP of a coordinator beside the cluster: compare its log with what the brokers show.")
@click.option("--coordinator-cluster", help="The cluster's name at that coordinator, where it has several.")
@click.option("--json", "as_json", is_flag=True, help="Findings as a list, for programs.")
@click.option("--auth-token-file", type=click.Path(path_type=Path), help="File with a JSON Web Token.")
@click.option("--tls-trust-certs-file", type=_PATH, help="PEM file with the authority of the brokers' certificates.")
@click.option("--tls-certificate-file", type=_PATH, help="PEM file with the certificate to show; your role, without a token.")
@click.option("--tls-key-file", type=_PATH, help="PEM file with its key.")
def doctor(
    cluster: str,
    admin_url: str | None,
    topics: tuple[str, ...],
    namespaces: tuple[str, ...],
    older_than: float,
    entries: int,
    auth_token_file: Path | None,
    tls_trust_certs_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
    **flags: Any,
) -> None:
    """Find what transactions hold back in a cluster, ours or Apache Pulsar's, and cure it when told to.

    Looking changes nothing. A cure needs a role that is in superUserRoles of the brokers.

    Exit codes: 0 nothing is wrong, or all of it is cured; 1 something is wrong, or the broker refused; 2 usage; 69 no broker
    answers.
    """
    if flags["cure"] and flags["as_json"]:
        raise Ending(USAGE, "--cure asks questions, and --json is for programs; use one of them")
    if (flags["yes"] or flags["abort_unknown"]) and not flags["cure"]:
        raise Ending(USAGE, "--yes and --abort-unknown answer the questions of --cure; add --cure")
    settings = _settings(auth_token_file, tls_trust_certs_file, tls_certificate_file, tls_key_file)
    options = DoctorOptions(
        cluster=cluster,
        admin_url=admin_url or _admin_url(cluster),
        settings=settings,
        scope=Scope(topics, namespaces, int(older_than * 1000), entries),
        **flags,
    )
    click.get_current_context().exit(asyncio.run(_run(options)))


def _authentication(token: Path | None, certificate: Path | None, key: Path | None) -> Authentication | None:
    """A token counts before a certificate, which is then shown and proves nothing."""
    if token is not None:
        if not token.is_file():  # not shown: perhaps it is the token itself
            raise Ending(USAGE, "--auth-token-file is no file; give the path of a file with the token")
        return TokenAuthentication.from_file(token)
    return None if certificate is None else TlsAuthentication(certificate, key)


def _settings(token: Path | None, trust: Path | None, certificate: Path | None, key: Path | None) -> Settings:
    try:
        return Settings(
            operation_timeout=10.0,
            authentication=_authentication(token, certificate, key),
            tls=TlsFiles(trust_certs_file=trust, certificate_file=certificate, key_file=key),
        )
    except PulsarError as error:
        raise Ending(USAGE, str(error)) from error


def _admin_url(cluster: str) -> str:
    try:
        address = parse_service_url(cluster)[0]
    except PulsarError as error:
        raise Ending(USAGE, f"--cluster: {error}") from error
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"https://{host}:8443" if address.tls else f"http://{host}:8080"


async def _run(options: DoctorOptions) -> int:
    runtime = AsyncioRuntime()
    brokers = _brokers(options, runtime)
    try:
        async with open_admin(options.admin_url, options.settings) as admin:
            reader = ClusterReader(admin)
            await reader.version()
            examination = Examination(reader, options.scope, partial(_load, brokers))
            findings = await examination.examine(runtime.wall_ms())
            if options.coordinator is not None:
                async with open_admin(options.coordinator, options.settings) as coordinator:
                    findings += await compare_with_coordinator(coordinator, admin, options.coordinator_cluster)
            _show(findings, options, runtime.wall_ms())
            if options.cure:
                suspects = [each.txn_id for each in findings if each.txn_id is not None and each.cure is not Cure.NOTHING]
                curing = Curing(BrokerAttempts(brokers), reader, examination, asyncio.sleep, options.search, suspects)
                findings = await _cure_all(findings, curing, options)
            if not findings:
                await _check_that_it_answers(brokers, options.cluster)
            if not findings and not options.as_json:
                click.echo(f"{options.cluster}: nothing is wrong. Topics looked at: {len(examination.topics)}")
    except AdminUnreachable as error:
        raise Ending(UNAVAILABLE, f"{error}; check --admin-url{' and --coordinator' * bool(options.coordinator)}") from error
    except AdminRefused as error:
        hint = "; use a role that may administrate these topics" if error.status in FORBIDDEN else ""
        raise Ending(REFUSED, f"the broker at {options.admin_url} answers {error}{hint}") from error
    except (ParticipantRefused, ValueError) as error:
        raise Ending(USAGE, str(error)) from error
    except PulsarError as error:
        raise Ending(USAGE, str(error)) from error
    finally:
        await brokers.close()
    return REFUSED if findings else OK


def _brokers(options: DoctorOptions, runtime: AsyncioRuntime) -> Brokers:
    try:
        return Brokers("cluster", options.cluster, options.settings, runtime)
    except PulsarError as error:
        raise Ending(USAGE, f"--cluster: {error}") from error


async def _check_that_it_answers(brokers: Brokers, cluster: str) -> None:
    """Raises Ending where no broker answers at --cluster: the HTTP side alone has said so far that nothing is wrong."""
    try:
        await brokers.any_connection()
    except PulsarError as error:
        text = f"no broker answers at {cluster} ({error}), although --admin-url shows nothing wrong; check --cluster"
        raise Ending(UNAVAILABLE, text) from error


async def _load(brokers: Brokers, number: int) -> str:
    """Ask for a coordinator as a client does; what came in between."""
    try:
        await brokers.load_coordinator(number)
    except LookupFailed as error:
        return str(error.__cause__)
    except PulsarError as error:
        return str(error)
    return ""


def _show(findings: list[Finding], options: DoctorOptions, now_ms: int) -> None:
    if options.as_json:
        click.echo(json.dumps([as_dict(each) for each in findings], indent=2))
        return
    for each in findings:
        click.echo("\n".join(lines(each, now_ms)))


async def _cure_all(findings: list[Finding], curing: Curing, options: DoctorOptions) -> list[Finding]:
    """Cure what can be cured and may be; what is left."""
    left = []
    for finding in findings:
        if finding.cure is Cure.NOTHING or not _is_allowed(finding, options, click.confirm):
            left.append(finding)
            continue
        try:
            click.echo(f"cured: {await curing.cure(finding)}")
        except NotCured as error:
            click.echo(f"not cured: {error}", err=True)
            left.append(finding)
    return left


def _is_allowed(finding: Finding, options: DoctorOptions, ask: Callable[[str], bool]) -> bool:
    if options.yes:
        return not finding.cure.guesses or options.abort_unknown
    return ask(question(finding))
