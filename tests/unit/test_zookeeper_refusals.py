"""The results of a ZooKeeper multi: whether it was applied, and which check refused it."""

from __future__ import annotations

from kazoo.exceptions import BadVersionError, RolledBackError, RuntimeInconsistency

from dualwrite.recipes.stores.zookeeper import _refusal


def test_results_without_an_error_are_no_refusal() -> None:
    assert _refusal(["/stock/lamp", True]) is None


def test_the_operation_that_names_the_cause_is_the_refusal() -> None:
    cause = BadVersionError()
    assert _refusal([RolledBackError(), cause, RuntimeInconsistency()]) is cause


def test_errors_that_name_no_cause_are_a_refusal_all_the_same() -> None:
    first = RolledBackError()
    assert _refusal([first, RuntimeInconsistency()]) is first
