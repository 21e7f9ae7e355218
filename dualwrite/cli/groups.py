"""The commands' common behaviour: their help fits 80 columns, and an option may stand before the subcommand, too."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

_FIRST_COLUMN: Final = 26
"""The greatest width of the column of options in --help; a longer option has its text below it."""


class _Formatter(click.HelpFormatter):
    """Writes help in which the texts have most of 80 columns, however long an option is."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = _FIRST_COLUMN, col_spacing: int = 2) -> None:
        super().write_dl(rows, col_max, col_spacing)


class _Context(click.Context):
    formatter_class = _Formatter


def _log(ctx: click.Context, param: click.Parameter, verbose: bool) -> None:
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _verbose() -> click.Option:
    """Return `--verbose`, which logs as soon as it is read, so that it may stand anywhere."""
    return click.Option(
        ("-v", "--verbose"),
        is_flag=True,
        expose_value=False,
        callback=_log,
        help="Log the client's actions to standard error.",
    )


class Command(click.Command):
    """A command with `--verbose`."""

    context_class = _Context

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_verbose())


class Group(click.Group):
    """A group of commands, whose options may stand before their name: `--json top` is `top --json`."""

    context_class = _Context
    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_verbose())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_the_command_first(ctx, args))

    def _with_the_command_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move options of the command, and their values, from before the command to behind it.

        A name may also be the value of an option, as in `--prefix top top`; so each command that is named is tried.
        """
        own = dict(_named(self.get_params(ctx)))
        for position, name in enumerate(args):
            found = self.get_command(ctx, name) if name in self.list_commands(ctx) else None
            if found is not None and _are_options(args[:position], own | dict(_options(found, ctx))):
                return [name, *args[:position], *args[position + 1 :]]
        return args


def _options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command, or of all commands of a group, by their names."""
    yield from _named(command.get_params(ctx))
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _options(each, ctx)


def _named(params: Sequence[click.Parameter]) -> Iterator[tuple[str, click.Option]]:
    for param in params:
        if isinstance(param, click.Option):
            yield from ((name, param) for name in (*param.opts, *param.secondary_opts))


def _are_options(args: Sequence[str], options: dict[str, click.Option]) -> bool:
    """Return whether these are options with all of their values, and nothing else."""
    left = list(args)
    while left:
        name, equals, _ = left.pop(0).partition("=")
        option = options.get(name)
        if option is None:
            return False
        values = 0 if equals or option.is_flag or option.count else option.nargs
        if len(left) < values:
            return False
        del left[:values]
    return True
