"""What a pure function returned: a search asks it once for each argument instead of once for each state."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")
Result = TypeVar("Result")
Value = TypeVar("Value", bound=Hashable)


class Interned(Generic[Value]):
    """One object for all equal values, so that what is remembered of it is found by its identity."""

    def __init__(self) -> None:
        self._known: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        """Return the first value that was equal to this one."""
        return self._known.setdefault(value, value)

    def __len__(self) -> int:
        return len(self._known)


class RememberedOf(Generic[First, Result]):
    """A pure function of one value. The value is looked up by its identity, which costs no hash of what is in it.

    The values are kept, so that no other one gets the identity of one that is gone. So they should be interned.
    """

    def __init__(self, function: Callable[[First], Result]) -> None:
        self._function = function
        self._known: dict[int, tuple[First, Result]] = {}

    def __call__(self, first: First) -> Result:
        """Return what the function returns."""
        found = self._known.get(id(first))
        if found is None:
            found = self._known[id(first)] = first, self._function(first)
        return found[1]


class RememberedOfTwo(Generic[First, Second, Result]):
    """The same of two values."""

    def __init__(self, function: Callable[[First, Second], Result]) -> None:
        self._function = function
        self._known: dict[tuple[int, int], tuple[First, Second, Result]] = {}

    def __call__(self, first: First, second: Second) -> Result:
        """Return what the function returns."""
        key = id(first), id(second)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = first, second, self._function(first, second)
        return found[2]
