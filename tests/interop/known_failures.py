"""The cases of clients that are known to fail, by the client's folder, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .client_folders import Fault, KnownFailure, On

KNOWN_FAILURES: Final[Mapping[str, Mapping[str, KnownFailure]]] = {
    "kafka_go": {
        "cases/reads_committed_records_only": KnownFailure(
            (On.EMULATOR, On.APACHE_KAFKA),
            Fault.CLIENT,
            "its isolation level limits how far the broker reads; what was aborted, and the markers, are not left out",
        ),
    },
}
