"""Text as it is, whichever subclass of `str` it is an instance of."""

from __future__ import annotations


def exact(text: str) -> str:
    """Return `text` as a plain str with the same characters.

    A subclass may format itself as another text (`str(Topics.ORDERS)` is `"Topics.ORDERS"`), and hash as another one.
    Whatever is encoded, compared or put into a sentence later would then differ from the value.
    """
    return text if type(text) is str else str.__str__(text)
