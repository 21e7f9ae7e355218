from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.django.project import Shop, shop_on
from tests.support.databases import Database, PostgresDatabase


@pytest.fixture
def shop(store: Database, emulator: Emulator) -> Iterator[Shop]:
    with shop_on(store, emulator) as made:
        yield made


@pytest.fixture
def postgres_shop(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[Shop]:
    with shop_on(postgres, emulator) as made:
        yield made
