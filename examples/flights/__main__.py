"""`python -m examples.flights`: run the demo; exit status 1 on any divergence of the dual write, 2 if it cannot run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from examples.flights.demo import run_demo
from examples.flights.errors import DemoError
from examples.flights.job import Method
from examples.flights.options import Options
from examples.flights.report import print_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = Options.parse(arguments)
    console = Console()
    try:
        results = run_demo(options, console)
    except DemoError as error:
        Console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; every process that was started is gone")
        return 130
    print_report(console, results, seed=options.seed)
    return int(any(result.comparison.divergences for result in results if result.method is Method.DUAL_WRITE))


if __name__ == "__main__":
    sys.exit(main())
