"""The commands of `pulsar-txn`, each imported when it is run.

Other rooms and distributions add commands through the entry-point group `pulsar_txn.commands` (a click command or
group each, under the entry point's name): that is how `produce` and `consume` come from the client, which the broker
does not know. A name of the broker's own commands cannot be taken.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points, version
from typing import Any, Final

import click

from pulsar_txn.broker.base.platforms import why_not_here

from .exits import UNAVAILABLE, Ending

COMMANDS: Final = "pulsar_txn.commands"

_OWN: Final = ("backup", "check", "config", "restore", "salvage", "standalone", "transactions")
"""Modules of this package with a `command`, by its name."""


class LazyGroup(click.Group):
    """Commands of this package by module, and those of entry points; errors end in a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*_OWN, *(point.name for point in entry_points(group=COMMANDS))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name in _OWN:
            if (sentence := why_not_here()) is not None:
                return _absent(cmd_name, sentence)
            command: click.Command = importlib.import_module(f".{cmd_name}", __package__).command
            return command
        for point in entry_points(group=COMMANDS, name=cmd_name):
            try:
                found: click.Command = point.load()
            except ImportError as error:
                if (sentence := why_not_here()) is not None:
                    return _absent(cmd_name, sentence)
                raise click.ClickException(f"the command {cmd_name} cannot be imported from {point.value}: {error}") from error
            return found
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            ending = error if isinstance(error, Ending) else _ending_of(error)
            if ending is None:
                raise
            say(ending)
            ctx.exit(ending.code)


def _absent(name: str, sentence: str) -> click.Command:
    """A command of another system: whatever is given to it, it ends with the sentence."""

    def end(**_given: Any) -> None:
        raise Ending(UNAVAILABLE, sentence)

    any_arguments = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    return click.Command(name, context_settings=settings, callback=end, params=[any_arguments], help=f"Not here: {sentence}.")


def _ending_of(error: Exception) -> Ending | None:
    if isinstance(error, click.ClickException | click.Abort | click.exceptions.Exit):
        return None
    from .endings import ending_of  # a command that ends well starts sooner without it

    return ending_of(error)


def say(ending: Ending) -> None:
    """One sentence on the error stream."""
    click.echo(f"pulsar-txn: {ending.sentence}", err=True)


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"pulsar-txn {version('pulsar-txn')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version and exit."
)
def group() -> None:
    """Transactions for Apache Pulsar: a small broker, and tools for it and for any Pulsar with transactions."""
