"""Convert text of any subclass of `str` to a plain str."""

from __future__ import annotations


def exact(text: str) -> str:
    """Return `text` as a plain str with the same characters.

    A subclass may format itself as another text (`str(Topics.ORDERS)` is `"Topics.ORDERS"`), and hash as another one.
    Its encoded form, comparisons and messages would then differ from the value.
    """
    return text if type(text) is str else str.__str__(text)
