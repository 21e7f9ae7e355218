"""From the subject of a certificate to a principal: Java's form of the name, and Kafka's rules."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID as Name

from dualwrite.broker_emulator.security.principal import (
    PrincipalMapping,
    distinguished_name,
    subject_of,
)


def named(*parts: tuple[x509.ObjectIdentifier, str]) -> str:
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])
    return distinguished_name(name.public_bytes())


NAMES = {
    # the last part comes first
    "CN=alice,OU=Sales,O=Shop,L=Berlin,ST=Berlin,C=DE": (
        (Name.COUNTRY_NAME, "DE"),
        (Name.STATE_OR_PROVINCE_NAME, "Berlin"),
        (Name.LOCALITY_NAME, "Berlin"),
        (Name.ORGANIZATION_NAME, "Shop"),
        (Name.ORGANIZATIONAL_UNIT_NAME, "Sales"),
        (Name.COMMON_NAME, "alice"),
    ),
    "UID=a1,STREET=Main Street 1,DC=example,DC=org": (
        (Name.DOMAIN_COMPONENT, "org"),
        (Name.DOMAIN_COMPONENT, "example"),
        (Name.STREET_ADDRESS, "Main Street 1"),
        (Name.USER_ID, "a1"),
    ),
    # an attribute without a keyword: its OID, and its encoded value in hexadecimal
    "1.2.840.113549.1.9.1=#160361406f,CN=a": ((Name.COMMON_NAME, "a"), (Name.EMAIL_ADDRESS, "a@o")),
    "2.5.4.5=#130137,CN=a": ((Name.COMMON_NAME, "a"), (Name.SERIAL_NUMBER, "7")),
    'CN=a\\,b\\+c\\=d\\<e\\>f\\#g\\;h\\"i\\\\j': ((Name.COMMON_NAME, 'a,b+c=d<e>f#g;h"i\\j'),),
    "CN=\\ \\ between\\ \\ ": ((Name.COMMON_NAME, "  between  "),),
    "CN=\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{EURO SIGN}": ((Name.COMMON_NAME, "\u00fc\u20ac"),),
    # as Kafka's authorizer wrote it of such a certificate
    "CN=\\ \\#\u00fc\u20ac x\\ ,UID=u1,2.5.4.5=#130137,O=a\\,b\\=c,DC=org,C=DE": (
        (Name.COUNTRY_NAME, "DE"),
        (Name.DOMAIN_COMPONENT, "org"),
        (Name.ORGANIZATION_NAME, "a,b=c"),
        (Name.SERIAL_NUMBER, "7"),
        (Name.USER_ID, "u1"),
        (Name.COMMON_NAME, " #\u00fc\u20ac x "),
    ),
    "": (),
}


@pytest.mark.parametrize("expected", NAMES)
def test_names_are_written_as_java_writes_them(expected: str) -> None:
    assert named(*NAMES[expected]) == expected


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x05\x01", b"\x30\x84\xff\xff\xff\xff", b"\x01" * 40])
def test_invalid_certificates_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        subject_of(data)


DN = "CN=Alice,OU=Sales,O=Shop,C=DE"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", DN),
        ("", DN),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1@example/U", "ALICE@EXAMPLE"),
        ("RULE:^.*OU=(.*?),O=(.*?),C=(.*?)$/$1@$2\\/$3/", "Sales@Shop/DE"),
        ("RULE:^CN=(.*?),OU=Support.*$/$1/,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "alice"),
        ("RULE:^CN=Bob$/x/, DEFAULT", DN),
        ("RULE:^CN=(Alice),.*$/\\$1/", "$1"),
    ],
)
def test_rules_name_the_principal(rules: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(DN) == name


@pytest.mark.parametrize("rules", ["RULE:", "RULE:a/b", "RULE:a/b/X", "default", "RULE:(/b/", "DEFAULT DEFAULT"])
def test_rules_that_cannot_be_read(rules: str) -> None:
    with pytest.raises(ValueError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)
