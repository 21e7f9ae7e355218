"""`python -m examples.flights_spark`: run the demo; exit status 1 on any divergence of the sink, 2 if it cannot run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from examples.flights.errors import DemoError
from examples.flights_spark.demo import run_demo
from examples.flights_spark.methods import Method
from examples.flights_spark.options import Options
from examples.flights_spark.report import print_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = Options.parse(arguments)
    console = Console()
    try:
        result = run_demo(options, console)
    except DemoError as error:
        Console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; every process that was started is gone")
        return 130
    print_report(console, result, options)
    return int(result.verdicts[Method.EXACTLY_ONCE].divergences > 0)


if __name__ == "__main__":
    sys.exit(main())
