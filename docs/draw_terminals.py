"""Draw docs/pictures/*.svg of the command in a terminal, from real runs: `python docs/draw_terminals.py`.

What differs from run to run (ids of producers, ages, suffixes) is replaced, so that the pictures stay the same.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from rich.style import Style
from rich.text import Text

from dualwrite.broker_emulator.clock import SystemClock, VirtualClock
from dualwrite.broker_emulator.emulator import Emulator

PICTURES: Final = Path(__file__).with_name("pictures")
_COLUMNS: Final = 124
_LETTER: Final = 7.83
_LINE: Final = 18
_MARGIN: Final = 14
_COLOURS: Final = {1: "#ff8a80", 2: "#7ee2a0", 3: "#f2cc60", 6: "#7fd6e8"}
"""The colours of a terminal, by their numbers."""
_AGE_MS: Final = 27 * 3_600_000 + 60_000
"""How long the crash seems to be ago: so long that it makes no difference how long the commands take."""
_STYLE: Final = (
    "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#e6eaee;white-space:pre}"
    ".prompt{fill:#9aa5b1}.bold{font-weight:700}"
    + "".join(f".c{number}{{fill:{colour}}}" for number, colour in _COLOURS.items())
)
_SAME: Final = (
    (re.compile(r"(?<!\d)1[78]\d{14}(?!\d)"), "1795342526754017"),
    (re.compile(r"(orders-\d)\.[a-z0-9]{8}\b"), r"\1.k3t7pwqz"),
    (re.compile(r"^\d\d:\d\d:\d\d"), "14:02:11"),
    (re.compile(r"\bsqlite \d+\.\d+\.\d+"), "sqlite 3.40.1"),
    (re.compile(r"\bcluster( +)[\w-]{22},"), r"cluster\1q7Zt2mWnTPa0V5cKx1bYdw,"),
)
_HOME: Final = b"\x1b[H"
"""Where the view of a whole terminal begins."""
_CONTROL: Final = re.compile(r"\x1b\[[?\d;]*[A-LN-Za-ln-z]")
"""Every escape but those of colours: it moves the cursor or changes the screen."""
_CRASH: Final = """
import os, sys
import sqlalchemy as sa
from dualwrite import DualWriter
url, servers, name, last = sys.argv[1:]
stop = lambda point: os._exit(137) if point == last else None
with DualWriter(sa.create_engine(url), bootstrap_servers=servers, transactional_id=name, pause=stop) as writer:
    with writer.transaction() as tx:
        tx.session.execute(sa.text("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY)"))
        tx.send("orders", key="1", value="lamp")
"""

Shown = tuple[str, list[str]]
"""A command, and the lines of its output with their escapes."""


def run(command: str, environment: dict[str, str]) -> Shown:
    """Run a command in a terminal of `_COLUMNS` columns."""
    process, ours = _start(command, environment)
    written = b""
    while part := _read(ours):
        written += part
    os.close(ours)
    process.wait()
    return command, [_same(line) for line in written.decode().replace("\r\n", "\n").splitlines()]


def watch(command: str, environment: dict[str, str], *, lines: int) -> Shown:
    """Run a command that fills a terminal of so many lines, and interrupt it when it has done so."""
    process, ours = _start(command, environment | {"LINES": str(lines)})
    written = b""
    while written.rpartition(_HOME)[2].count(b"\n") < lines - 1:
        written += _read(ours)
    process.send_signal(signal.SIGINT)
    while _read(ours):  # a view that cannot write does not end
        pass
    os.close(ours)
    process.wait()
    _, _, screen = written.rpartition(_HOME)
    return command, [_same(_CONTROL.sub("", line).rstrip()) for line in screen.decode().splitlines()]


def _start(command: str, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command; return it, and our side of its terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", *shlex.split(command)]
    environment = os.environ | environment | {"TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(words, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    return process, ours


def _read(terminal: int) -> bytes:
    """Return what comes next; nothing at the end, which a pseudo terminal reports as an error."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


def _same(line: str) -> str:
    for pattern, replacement in _SAME:
        line = pattern.sub(replacement, line)
    return line


def picture(shown: Sequence[Shown], *, animated: bool) -> str:
    """Return a session as an SVG file; `animated`: each command with its output appears after the one before."""
    height = 2 * _MARGIN + _LINE * (sum(len(lines) + 2 for _, lines in shown) - 1)
    width = round(2 * _MARGIN + _COLUMNS * _LETTER)
    total_s = 3 * len(shown) + 4
    style = _STYLE + (_steps(len(shown), total_s) if animated else "")
    starts = accumulate((len(lines) + 2 for _, lines in shown), initial=0)
    parts = [
        f'<g class="step{number}">{"".join(_session(each, start))}</g>'
        for number, (each, start) in enumerate(zip(shown, starts, strict=False))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _steps(number: int, total_s: int) -> str:
    """Return the animation: steps appear one after the other, for those who have not asked for less motion."""
    rules = "".join(
        f"@keyframes s{step}{{0%,{300 * step / total_s:.2f}%{{opacity:0}}{300 * step / total_s + 0.01:.2f}%,100%"
        f"{{opacity:1}}}}.step{step}{{animation:s{step} {total_s}s infinite}}"
        for step in range(1, number)
    )
    return f"@media (prefers-reduced-motion:no-preference){{{rules}}}"


def _session(shown: Shown, start: int) -> Iterator[str]:
    command, lines = shown
    y = _MARGIN + _LINE * start + 13
    typed = f'<tspan class="prompt">$ </tspan><tspan class="bold">{escape(command)}</tspan>'
    yield f'<text x="{_MARGIN}" y="{y}">{typed}</text>'
    for number, line in enumerate(lines, 1):
        yield f'<text x="{_MARGIN}" y="{y + _LINE * number}">{"".join(_spans(line))}</text>'


def _spans(line: str) -> Iterator[str]:
    """Yield the parts of a line, each with the class of its colour."""
    text = Text.from_ansi(line)
    cuts = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    for start, end in pairwise(cuts):
        styles = [span.style for span in text.spans if span.start <= start < span.end and isinstance(span.style, Style)]
        names = [f"c{style.color.number}" for style in styles if style.color is not None]
        names += ["bold" for style in styles if style.bold]
        part = escape(text.plain[start:end])
        yield f'<tspan class="{" ".join(names)}">{part}</tspan>' if names else part


def pictures() -> dict[str, str]:
    """Return all pictures by their names."""
    clock = VirtualClock(SystemClock().now_ms() - _AGE_MS)
    with tempfile.TemporaryDirectory() as directory, Emulator(topics={"orders": 1}, clock=clock) as kafka:
        url = f"sqlite:///{directory}/shop.db"
        environment = {"DUALWRITE_BOOTSTRAP_SERVER": kafka.bootstrap_servers, "DUALWRITE_DATABASE_URL": url}
        doctor = run("dualwrite init-db", environment), run("dualwrite doctor", environment)

        def crash(*words: str) -> None:
            command = [sys.executable, "-c", _CRASH, url, kafka.bootstrap_servers, *words]
            subprocess.run(command, check=False, capture_output=True)

        crash("orders-1", "after-database-commit")
        recovery = (
            run("dualwrite top --once", environment),
            run("dualwrite recover --all", environment),
            run("dualwrite recover --all --apply", environment),
            run("dualwrite top --once", environment),
        )
        crash("orders-1", "after-database-commit")
        crash("orders-2", "after-prepare")
        top = watch("dualwrite top", environment, lines=6)
    return {
        "doctor.svg": picture(doctor, animated=False),
        "top.svg": picture([top], animated=False),
        "recover.svg": picture(recovery, animated=True),
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        (PICTURES / name).write_text(text)
