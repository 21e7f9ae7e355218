"""`transaction.atomic()` with an outbox: the records are in the database, and the pool publishes them after it."""

from __future__ import annotations

import pytest
from django.conf import settings

from dualwrite import Outbox
from dualwrite.outcome import Outcome
from tests.django.project import Shop
from tests.support.conditions import until


@pytest.fixture(autouse=True)
def with_outbox(shop: Shop) -> None:
    settings.DUALWRITE[shop.alias]["delivery"] = Outbox()


def test_a_block_is_stored_and_published_right_after(shop: Shop) -> None:
    with shop.atomic():
        write = shop.put(1)
    assert write.outcome is Outcome.STORED
    until(lambda: shop.on_each_side()[1] == ["1"])
