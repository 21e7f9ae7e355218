"""`dualwrite broker`: the broker emulator, with its own options."""

from __future__ import annotations

import sys

import click

_AS_THEY_ARE = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command("broker", context_settings=_AS_THEY_ARE, short_help="Run a Kafka broker to develop and test against.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run a Kafka broker to develop and test against, like `python -m dualwrite.broker_emulator`."""
    try:
        from dualwrite.broker_emulator.process.tuning import start_lean
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dualwrite."):
            raise click.ClickException("the broker is not installed: pip install 'dualwrite[emulator]'") from None
        raise click.ClickException(str(error)) from None
    start_lean()
    from dualwrite.broker_emulator.process.command_line import main

    sys.exit(main(arguments, prog="dualwrite broker"))
