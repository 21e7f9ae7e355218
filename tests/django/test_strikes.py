"""An exception strikes an atomic block anywhere: both sides stay equal, and the next block works."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.django.project import Shop
from tests.support.strikes import KINDS, Strike, explained, strike

EVERY: Final = 1
"""For all places; `make test` strikes at fewer."""


def write(shop: Shop, number: int) -> None:
    with shop.atomic():
        shop.put(number)


def strike_blocks(shop: Shop, stride: int) -> int:
    """Strike a block at each place, or at some of them. Return how many there are."""
    write(shop, 1)
    with Strike() as counted:
        write(shop, 2)
    number, struck = 2, set()
    for at in range(1, counted.places + 1, stride):
        number += 2
        where = strike(at, partial(write, shop, number - 1), KINDS[at % 2])
        struck.add(str(number - 1))
        with explained(where):
            assert (shop.pool.status.in_use, shop.pool.status.waiting) == (0, 0)
            write(shop, number)
    shop.pool.recover()  # a block that was struck after its decision may have left its record to the next use
    assert {str(each) for each in range(1, number + 1)} - set(shop.written()) <= struck
    return counted.places


def test_some_places_of_a_block(shop: Shop) -> None:
    assert strike_blocks(shop, stride=29) > 100


def test_every_place_of_a_block(shop: Shop) -> None:
    strike_blocks(shop, EVERY)
