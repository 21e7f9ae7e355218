"""Free ports for servers that cannot choose one themselves."""

from __future__ import annotations

from tests.support.servers.ports import free_port


def test_no_port_is_given_out_twice() -> None:
    ports = [free_port() for _ in range(500)]  # by chance alone, two of them would be equal nearly always
    assert len(set(ports)) == len(ports)
