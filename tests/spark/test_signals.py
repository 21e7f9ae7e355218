"""An error of a signal handler, such as a time limit, is no failure of a checkpoint, of Spark, or of telemetry."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_sink import foreach_batch
from spark_sink.driver import checkpoint, telemetry
from spark_sink.driver.checkpoint import Checkpoint, find_checkpoint


class TimeLimitError(Exception):
    """The error that the handler of the application raises."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def strike(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGUSR1)


class Struck:
    """An object of Spark that is struck when it is used."""

    def __getattr__(self, name: str) -> None:
        strike()


def with_session(**session: Any) -> Any:
    return SimpleNamespace(sparkSession=SimpleNamespace(**session), _explain_string=strike)


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("_content", lambda location: Checkpoint(location).query_id()),
        ("_names", lambda location: Checkpoint(location).is_inside_batch()),
        ("_names", lambda location: find_checkpoint(None, location, None, "id")),
    ],
)
def test_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, call: Callable[[str], object]
) -> None:
    (tmp_path / "metadata").write_text('{"id":"id"}')
    monkeypatch.setattr(checkpoint, place, strike)
    with pytest.raises(TimeLimitError):
        call(str(tmp_path))


@pytest.mark.parametrize(
    "call",
    [
        lambda: foreach_batch._context(SimpleNamespace(sparkSession=Struck())),  # type: ignore[arg-type]
        lambda: foreach_batch._analyzed_plan(with_session()),
        lambda: foreach_batch._running_query(
            with_session(sparkContext=SimpleNamespace(_jvm=None), _jsparkSession=Struck()), "id"
        ),
        lambda: telemetry._guarded(strike, "telemetry.setup"),
    ],
)
def test_spark_and_telemetry(call: Callable[[], object]) -> None:
    with pytest.raises(TimeLimitError):
        call()
