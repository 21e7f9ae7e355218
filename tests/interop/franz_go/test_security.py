"""franz-go over TLS and SASL, and with access control."""

from __future__ import annotations

from tests.interop.program_cases import SecurityPrograms
from tests.interop.secured_brokers import certificates, secured, secured_topic, secured_wire

__all__ = ["TestSecurity", "certificates", "secured", "secured_topic", "secured_wire"]


class TestSecurity(SecurityPrograms):
    """The cases of every program."""

    not_authorized = "TOPIC_AUTHORIZATION_FAILED"
