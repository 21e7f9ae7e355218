"""Listeners: the address that a broker binds, its security protocol, the advertised address (KIP-103), and TLS."""

from __future__ import annotations

import os
import re
import socket
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from dualwrite.broker_emulator.security.principal import DEFAULT_MAPPING, PrincipalMapping
from dualwrite.broker_emulator.security.sasl.mechanism import Sasl

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END \1-----")


class ClientAuth(StrEnum):
    """Whether clients must send a certificate (ssl.client.auth)."""

    NONE = "none"
    REQUESTED = "requested"
    """A client may send a certificate."""
    REQUIRED = "required"


class StoreType(StrEnum):
    """The formats of certificate stores that both Kafka and this broker read."""

    PEM = "PEM"
    PKCS12 = "PKCS12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The TLS settings of one listener, by Kafka's names without `ssl.`.

    The certificate with its key is in the file `keystore_location`, or as PEM in `keystore_certificate_chain` and
    `keystore_key`. Raises ValueError for missing or contradictory settings.
    """

    keystore_type: StoreType = StoreType.PEM
    keystore_location: str | os.PathLike[str] | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = None
    keystore_key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: StoreType = StoreType.PEM
    truststore_location: str | os.PathLike[str] | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    enabled_protocols: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    principal_mapping: PrincipalMapping = DEFAULT_MAPPING
    """The mapping of a client's certificate to its principal (ssl.principal.mapping.rules)."""

    def __post_init__(self) -> None:
        inline = (self.keystore_certificate_chain, self.keystore_key)
        if (self.keystore_location is None) == (None in inline):
            raise ValueError(
                "TLS needs either ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key"
            )
        if None in inline and inline != (None, None):
            raise ValueError("ssl.keystore.certificate.chain and ssl.keystore.key go together")
        if self.truststore_location is not None and self.truststore_certificates is not None:
            raise ValueError("ssl.truststore.location and ssl.truststore.certificates exclude each other")
        if self.client_auth != ClientAuth.NONE and not self._has_truststore:
            raise ValueError(
                f"ssl.client.auth={self.client_auth} needs a truststore with the issuers of client certificates"
            )
        for version in self.enabled_protocols:
            if version not in _VERSIONS:
                raise ValueError(f"ssl.enabled.protocols supports {' and '.join(_VERSIONS)}, not {version!r}")
        if not self.enabled_protocols:
            raise ValueError("ssl.enabled.protocols names no protocol")

    @property
    def _has_truststore(self) -> bool:
        return self.truststore_location is not None or self.truststore_certificates is not None

    def server_context(self) -> ssl.SSLContext:
        """Return the SSL context for connections. Raises ValueError with the reason for an unusable file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # as in Kafka; otherwise one client could keep the broker busy at little cost
        context.options |= ssl.OP_NO_RENEGOTIATION
        versions = sorted(_VERSIONS[version] for version in self.enabled_protocols)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        context.verify_mode = _VERIFY_MODES[self.client_auth]
        _load_identity(context, self._identity(), self.key_password, self.keystore_location or "ssl.keystore.key")
        if self._has_truststore:
            where = self.truststore_location or "ssl.truststore.certificates"
            try:
                context.load_verify_locations(cadata=self._trusted())
            except ssl.SSLError as error:
                raise ValueError(f"{where} has no certificates in PEM: {error.reason or error}") from error
        return context

    def _identity(self) -> str:
        """Return the certificate chain and the key, in PEM."""
        if self.keystore_location is None:
            return _lines(f"{self.keystore_key}\n{self.keystore_certificate_chain}")
        if self.keystore_type == StoreType.PKCS12:
            return _identity_of_pkcs12(self.keystore_location, self.keystore_password)
        return _read(self.keystore_location)

    def _trusted(self) -> str:
        if self.truststore_location is None:
            return _lines(self.truststore_certificates or "")
        if self.truststore_type == StoreType.PKCS12:
            return _trusted_of_pkcs12(self.truststore_location, self.truststore_password)
        return _read(self.truststore_location)


_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a PEM file; set its format by ssl.keystore.type or ssl.truststore.type"
        ) from error


def _lines(text: str) -> str:
    """Return PEM with the line breaks that OpenSSL needs: in a properties file it is often on one line."""
    blocks = ((kind, re.findall(".{1,64}", "".join(body.split()))) for kind, body in _PEM_BLOCK.findall(text))
    return "".join("\n".join((f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----\n")) for kind, lines in blocks)


def _load_identity(context: ssl.SSLContext, pem: str, key_password: str | None, where: str | os.PathLike[str]) -> None:
    # OpenSSL reads a certificate chain only from a file. Only this user can read the file, and it is deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        try:
            # without a password, OpenSSL would prompt at the terminal
            context.load_cert_chain(file.name, password=key_password or "")
        except ssl.SSLError as error:
            reason = error.reason or "the key is encrypted and ssl.key.password does not open it"
            raise ValueError(f"{where} has no certificate with its key in PEM: {reason}") from error


def _identity_of_pkcs12(path: str | os.PathLike[str], password: str | None) -> str:
    from cryptography.hazmat.primitives import serialization

    key, certificate, others = _open_pkcs12(path, password)
    if key is None or certificate is None:
        raise ValueError(f"{path} has no certificate with its key")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in (certificate, *others))
    return str(pem + chain, "ascii")


def _trusted_of_pkcs12(path: str | os.PathLike[str], password: str | None) -> str:
    from cryptography.hazmat.primitives import serialization

    _, certificate, others = _open_pkcs12(path, password)
    every = (*([] if certificate is None else [certificate]), *others)
    return str(b"".join(each.public_bytes(serialization.Encoding.PEM) for each in every), "ascii")


def _open_pkcs12(path: str | os.PathLike[str], password: str | None) -> Any:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ValueError(f"{path}: PKCS12 needs the package cryptography; PEM needs no package") from None
    try:
        return pkcs12.load_key_and_certificates(Path(path).read_bytes(), (password or "").encode())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a PKCS12 file, or its password is wrong") from error


MAX_PORT: Final = 65535
UNROUTABLE: Final = ("0.0.0.0", "::")


class SecurityProtocol(StrEnum):
    """Kafka's security protocols: with or without TLS, with or without a SASL login."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @classmethod
    def of(cls, *, tls: bool, sasl: bool) -> Self:
        """Return the protocol with these parts."""
        return cls(("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT") if sasl or tls else "PLAINTEXT")


class Endpoint(NamedTuple):
    """The advertised address of a broker."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener, which every node has: node n (counted from 0) binds `port` + n, or a free port if `port` is 0.

    `tls` and `sasl` determine the security protocol; without both it is PLAINTEXT. The advertised host and port (also +
    n) default to the bound ones. An empty host binds every interface and advertises this machine's host name. Raises
    ValueError for an impossible name or port.
    """

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls | None = None
    sasl: Sasl | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a listener needs a name")
        for port in (self.port, self.advertised_port or 0):
            if not 0 <= port <= MAX_PORT:
                raise ValueError(f"listener {self.name}: a port must be a number from 0 to {MAX_PORT}, not {port}")

    @property
    def protocol(self) -> SecurityProtocol:
        """The security protocol."""
        return SecurityProtocol.of(tls=self.tls is not None, sasl=self.sasl is not None)

    def port_of(self, place: int) -> int:
        """Return the port that the node at this place binds; 0: any free port."""
        return self.port + place if self.port else 0

    def advertised(self, place: int, bound_port: int) -> Endpoint:
        """Return the advertised address of the node at this place, whose listener is bound to `bound_port`."""
        port = self.advertised_port + place if self.advertised_port else bound_port
        return Endpoint(self.advertised_host or self.host or socket.gethostname(), port)


def check_listeners(listeners: list[Listener], nodes: int) -> None:
    """Raise ValueError if these listeners conflict on one node, or the ports of the nodes overlap."""
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a node needs one or more listeners with different names, not {', '.join(names) or 'none'}")
    taken: dict[int, str] = {}
    for listener in listeners:
        for port in {listener.port_of(place) for place in range(nodes)} - {0}:
            if port > MAX_PORT:
                raise ValueError(
                    f"listener {listener.name}: {nodes} nodes from port {listener.port} on need ports beyond {MAX_PORT}"
                )
            other = taken.setdefault(port, listener.name)
            if other != listener.name:
                raise ValueError(
                    f"the listeners {other} and {listener.name} both need port {port}: each of {nodes} nodes takes the "
                    "next port, so leave that many between two listeners"
                )
