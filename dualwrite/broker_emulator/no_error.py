"""`NO_ERROR`: no error, under a name that is quick to read, because every request asks for it a dozen times.

Until Python 3.12 reading a member from an enum class takes as long as six calls of a function: its metaclass has a
`__getattr__`, which keeps the interpreter from remembering where the member is. Modules that every request passes
through therefore give the members they need a name of their own.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

NO_ERROR: Final = ErrorCode.none
