"""librdkafka's mock cluster in a process of its own: `python -m benchmarks.librdkafka_mock TOPIC ...`.

It comes with confluent-kafka, whose Python API does not expose the address of a mock cluster; its C API does. Prints
the bootstrap address on one line when it is ready, and ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

PARTITIONS = 4
_PRODUCER = 0


def library_path() -> Path:
    """Return the librdkafka bundled with confluent-kafka. Raises FileNotFoundError if it uses the system's."""
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("confluent-kafka is not installed")
    package = Path(spec.origin).parent
    for directory in (package.parent / "confluent_kafka.libs", package / ".dylibs"):
        for path in sorted(directory.glob("librdkafka*")):
            return path
    raise FileNotFoundError("this confluent-kafka does not bundle librdkafka")


def start(topics: list[str]) -> str:
    """Start a mock cluster of one broker, and return its bootstrap address."""
    library = ctypes.CDLL(str(library_path()))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, text, text, text, ctypes.c_size_t]
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, text, ctypes.c_size_t]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_topic_create.argtypes = [pointer, text, ctypes.c_int, ctypes.c_int]
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    library.rd_kafka_mock_cluster_bootstraps.restype = text
    reason = ctypes.create_string_buffer(512)
    settings = library.rd_kafka_conf_new()
    # otherwise the client, which only hosts the cluster, would warn that it has no broker
    library.rd_kafka_conf_set(settings, b"log_level", b"3", reason, len(reason))
    client = library.rd_kafka_new(_PRODUCER, settings, reason, len(reason))
    if not client:
        raise RuntimeError(reason.value.decode())
    cluster = library.rd_kafka_mock_cluster_new(client, 1)
    for topic in topics:
        library.rd_kafka_mock_topic_create(cluster, topic.encode(), PARTITIONS, 1)
    bootstrap_servers: bytes = library.rd_kafka_mock_cluster_bootstraps(cluster)
    return bootstrap_servers.decode()


if __name__ == "__main__":
    print(start(sys.argv[1:]), flush=True)
    sys.stdin.read()
