"""kafkajs over TLS and SASL, and with access control."""

from __future__ import annotations

from tests.apache_kafka.secured import LIMITED
from tests.interop.case_program import CaseProgram
from tests.interop.program_cases import SecurityPrograms
from tests.interop.secured_brokers import SecuredBroker, certificates, secured, secured_topic, secured_wire

__all__ = ["TestSecurity", "certificates", "secured", "secured_topic", "secured_wire"]


class TestSecurity(SecurityPrograms):
    """The cases of every program."""

    not_authorized = "Not authorized to access topics"

    def test_rules(self, program: CaseProgram, secured: SecuredBroker, secured_topic: str) -> None:
        names = {"topic": secured_topic, "principal": f"User:{LIMITED}"}
        assert program.run("rules", servers=secured.bootstrap_servers, **names) == [1, 0]
