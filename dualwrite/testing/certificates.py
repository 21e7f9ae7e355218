"""Throw-away certificates: an authority, a broker's certificate for 127.0.0.1 only, and a client's.

Needs the packages trustme and cryptography.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization

KEY_PASSWORD = "key-password-that-nobody-may-see"


class Certificates(NamedTuple):
    """PEM files. `broker` has key and certificate; `client_key` is encrypted with `KEY_PASSWORD`.

    `stranger` is the certificate of an authority that signed none of the others.
    """

    authority: Path
    stranger: Path
    broker: Path
    client: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Create all certificates and write them to `directory`."""
    authority, stranger = trustme.CA(), trustme.CA()
    made = Certificates(*(directory / f"{name}.pem" for name in Certificates._fields))
    authority.cert_pem.write_to_path(str(made.authority))
    stranger.cert_pem.write_to_path(str(made.stranger))
    broker = authority.issue_cert("127.0.0.1")
    # Java reads only PKCS #8 keys
    made.broker.write_bytes(_pkcs8(broker, serialization.NoEncryption()) + _chain(broker))
    client = authority.issue_cert("client@example.org", common_name="client")
    made.client.write_bytes(_chain(client))
    made.client_key.write_bytes(_pkcs8(client, serialization.BestAvailableEncryption(KEY_PASSWORD.encode())))
    return made


def _pkcs8(certificate: trustme.LeafCert, encryption: serialization.KeySerializationEncryption) -> bytes:
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _chain(certificate: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
