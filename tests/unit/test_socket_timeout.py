"""`SocketTimeout`: it shuts the socket down in time, and finds the socket of each driver."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import Any

from dualwrite.recipes.sql.socket_timeout import SocketTimeout


def test_a_late_response_finds_the_connection_closed() -> None:
    client, server = socket.socketpair()
    with client, server:
        client.settimeout(30)
        with SocketTimeout(client, 0.05) as limit:
            assert client.recv(1) == b""  # the end of the stream, not a response
        assert limit.has_fired


def test_a_response_in_time_leaves_the_connection_open() -> None:
    client, server = socket.socketpair()
    with client, server:
        with SocketTimeout(client, 60) as limit:
            server.sendall(b"1")
            assert client.recv(1) == b"1"
        assert not limit.has_fired
        server.sendall(b"2")
        assert client.recv(1) == b"2"


def test_a_connection_without_a_socket_has_no_limit() -> None:
    with SocketTimeout(object(), 60) as limit:
        pass
    assert not limit.has_fired


def test_the_drivers_keep_their_sockets_where_they_are_looked_for() -> None:
    pymysql: Any = import_module("pymysql.connections")
    asyncpg: Any = import_module("asyncpg.connection")
    assert hasattr(pymysql.Connection, "_sock")
    assert "_transport" in asyncpg.Connection.__slots__
    assert hasattr(import_module("psycopg").Connection, "fileno")
