"""`dualwrite broker`: the broker emulator, with its own options, which are imported when the command is used."""

from __future__ import annotations

import click

from dualwrite.cli.groups import Command


def _command_of_the_emulator() -> click.Command:
    try:
        from dualwrite.broker_emulator.process.tuning import start_lean
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dualwrite."):
            raise click.ClickException("the broker is not installed: pip install 'dualwrite[emulator]'") from None
        raise click.ClickException(str(error)) from None
    start_lean()
    from dualwrite.broker_emulator.process.command_line import command

    return command


class _Broker(Command):
    """The emulator's command, under another name."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return _command_of_the_emulator().params + super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> object:
        return _command_of_the_emulator().invoke(ctx)


command = _Broker(
    "broker",
    short_help="Run a Kafka broker to develop and test against.",
    help="Run a Kafka broker to develop and test against, like `python -m dualwrite.broker_emulator`.",
)
