"""The lists of `make test` name existing files, and all files that share a real Kafka."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.support.parallel_runs import INTEROP, LONGEST, ON_REAL_KAFKAS

ROOT: Final = Path(__file__).parents[2]
SHARED: Final = re.compile(r'\bshared_kafka\(|"apache_kafka(_3_9)?"[],]|\bapache_kafka: Broker')
THIS: Final = "tests/unit/test_parallel_runs.py"


def test_each_named_file_is_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_every_test_of_a_shared_kafka_is_in_its_list() -> None:
    """Otherwise it may find one that has been ended, if it comes later in the same process."""
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py") if SHARED.search(path.read_text())}
    assert {file for file in found if not file.startswith(INTEROP)} - {THIS} <= set(ON_REAL_KAFKAS)
