"""The results of pure functions, remembered: a search calls them with the same arguments in hundreds of states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_MOST_ANSWERS: Final = 200_000
"""Results per function. A space of millions of states has a few thousand."""

_values: Final[dict[tuple[type, Hashable], Hashable]] = {}
"""One object for all equal results of a type, so that they are known by their identity later. By type, as named tuples
of two types may be equal.
"""

_answers: Final[list[dict[tuple[int, ...], tuple[object, Any]]]] = []
"""The remembered results of each function."""


def forget() -> None:
    """Forget everything, as after a search: the next one asks other things."""
    _values.clear()
    for known in _answers:
        known.clear()


def remembered(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Call a pure function once for each choice of positional arguments, and return the same object again.

    Arguments are looked up by their identity, without a hash of their contents, and kept, so that their identity is not
    reused. Iterators are returned as tuples.
    """
    known: dict[tuple[int, ...], tuple[object, Result]] = {}
    _answers.append(known)

    @wraps(function)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        key = tuple(map(id, args))
        found = known.get(key)
        if found is None:
            if len(known) >= _MOST_ANSWERS:
                known.clear()
            found = known[key] = args, cast("Result", _same(function(*args, **kwargs)))
        return found[1]

    return answer


def _same(value: Any) -> Any:
    """Return the value that was returned before and is equal, if there is one."""
    if isinstance(value, Iterator) or type(value) is tuple:
        return tuple(map(_same, value))
    if isinstance(value, list):
        return value
    if len(_values) >= _MOST_ANSWERS:
        _values.clear()
    return _values.setdefault((type(value), value), value)
