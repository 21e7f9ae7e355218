"""TLS: the context that the settings describe, and explanations of failed handshakes in terms of the settings."""

from __future__ import annotations

import os
import ssl
from typing import Final

from dualwrite.errors import ConfigError
from dualwrite.security_config import SecurityConfig

_EXPIRED: Final = 10
_UNKNOWN_ISSUER: Final = (2, 18, 19, 20, 21)
_WRONG_NAME: Final = (62, 63, 64)
"""OpenSSL's X509_V_ERR_* numbers."""

# OpenSSL's reasons when the peer has sent an alert about our certificate, or about its absence.
_ABOUT_OUR_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "ALERT_UNKNOWN_CA", "CERTIFICATE_UNKNOWN")
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NO_COMMON_GROUND: Final = ("HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_CIPHERS", "NO_SHARED")

NOT_TLS: Final = (
    "the listener does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT, "
    "or connect to the port of a TLS listener"
)
ONLY_TLS: Final = (
    "the listener speaks TLS: set security.protocol to SSL or SASL_SSL, "
    "or connect to the port of a listener without TLS"
)


def tls_context(config: SecurityConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None without TLS. Raises `ConfigError`, which names a wrong file."""
    if not config.uses_tls:
        return None
    if config.ssl_context is not None:
        return config.ssl_context
    context = _trusting(config.ssl_ca_location)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    if config.ssl_certificate_location is not None:
        _identify(context, config)
    return context


def _trusting(location: str | None) -> ssl.SSLContext:
    """Return a context that trusts the PEM certificates in a file or directory; None: the system's authorities."""
    if location is None:
        return ssl.create_default_context()
    try:
        if os.path.isdir(location):  # noqa: PTH112 - a setting is a str
            return ssl.create_default_context(capath=location)
        return ssl.create_default_context(cafile=location)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl.ca.location: {location!r} has no certificate in PEM format ({error.reason})") from error
    except OSError as error:
        raise ConfigError(f"ssl.ca.location: {location!r} cannot be read ({error.strerror})") from error


def _identify(context: ssl.SSLContext, config: SecurityConfig) -> None:
    certificate, key = config.ssl_certificate_location, config.ssl_key_location
    assert certificate is not None
    named = f"ssl.certificate.location: {certificate!r}" + ("" if key is None else f", ssl.key.location: {key!r}")
    password = config.ssl_key_password or ""
    try:
        # without a password function, OpenSSL would prompt for it at the terminal
        context.load_cert_chain(certificate, key, password=lambda: password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{named}: not a certificate in PEM format with the key that belongs to it, or ssl.key.password is "
            f"missing or wrong ({error.reason})"
        ) from None  # the message has the cause, and the traceback must not show the key
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read ({error.strerror})") from error


def refusal_of_handshake(error: ssl.SSLError, host: str) -> str | None:
    """Say what is wrong and what to do; None if the connection was only cut off, which does not point to a setting."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, host)
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not reason or "UNEXPECTED_EOF" in reason:
        return None
    if any(word in reason for word in _ABOUT_OUR_CERTIFICATE):
        return (
            f"the broker does not accept this client's certificate, or requires one and got none ({reason}): "
            "set ssl.certificate.location and ssl.key.location to one that it trusts"
        )
    if any(word in reason for word in _NOT_TLS):
        return f"{NOT_TLS} ({reason})"
    if any(word in reason for word in _NO_COMMON_GROUND):
        return f"this client and the broker have no TLS version or cipher in common ({reason})"
    return f"the TLS handshake failed ({reason})"


def _distrust(error: ssl.SSLCertVerificationError, host: str) -> str:
    why = error.verify_message
    if error.verify_code in _WRONG_NAME:
        return (
            f"the broker's certificate is not for {host!r} ({why}): connect by a name that is in the certificate, or "
            "turn off that check with ssl.endpoint.identification.algorithm=none"
        )
    if error.verify_code in _UNKNOWN_ISSUER:
        return (
            f"no trusted authority has signed the broker's certificate ({why}): set ssl.ca.location to the "
            "certificate (PEM) of the authority that signed it"
        )
    if error.verify_code == _EXPIRED:
        return f"the broker's certificate has expired ({why}): renew it at the broker"
    return f"the broker's certificate is not acceptable ({why})"
