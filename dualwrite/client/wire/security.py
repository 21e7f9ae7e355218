"""The security of connections: TLS as the settings describe it, and SASL logins (KIP-43, KIP-152).

Failed handshakes are explained in terms of the settings. The SASL mechanisms themselves are kafka-python's. Slow steps
of a login - a token provider that calls a server, the thousands of hashes of SCRAM - run in their own thread, so that
they do not block the other connections of the loop. Errors contain no secrets: they name only the type of a
token provider's exception, because its text may quote a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dualwrite.client.error_texts import error_name
from dualwrite.client.kafka_python import (
    AbstractTokenProvider,
    SaslMechanismOAuth,
    SaslMechanismPlain,
    SaslMechanismScram,
)
from dualwrite.client.late_log import log_guarded
from dualwrite.client.messages import BrokerFeatures
from dualwrite.client.wire import codec
from dualwrite.client.wire.in_a_thread import in_a_thread
from dualwrite.client.wire.versions import SPOKEN_VERSIONS, common_version
from dualwrite.errors import Api, AuthenticationError, ConfigError
from dualwrite.security_config import SecurityConfig

_EXPIRED: Final = 10
_UNKNOWN_ISSUER: Final = (2, 18, 19, 20, 21)
_WRONG_NAME: Final = (62, 63, 64)
"""OpenSSL's X509_V_ERR_* numbers."""

# OpenSSL's reasons when the peer has sent an alert about our certificate, or about its absence.
_ABOUT_OUR_CERTIFICATE: Final = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REVOKED",
    "UNSUPPORTED_CERTIFICATE",
)
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

_TOKEN_PATIENCE_S: Final = 10.0
"""Age from which on a call of a token provider is taken for one that never returns."""

_log = logging.getLogger(__name__)

SendRequest = Callable[[Api, int, bytes], Awaitable[memoryview]]
"""Sends a request and returns the body of the response; raises `ConnectionError` if none came."""

_UNSUPPORTED_SASL_MECHANISM: Final = 33
_ILLEGAL_SASL_STATE: Final = 34
_SASL_AUTHENTICATION_FAILED: Final = 58
_MOST_ROUNDS: Final = 4  # SCRAM needs two, and so does a refused token
_NO_MECHANISM: Final = "-"
_SERVER_FIRST: Final = re.compile(rb"r=[^,]+,s=[^,]+,i=([0-9]{1,9})(?:,[^rsi,]=[^,]*)*")  # RFC 5802, 7
_LEAST_ITERATIONS: Final = 4096  # RFC 7677, 4


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


class TlsFiles:
    """The TLS context of the settings, made anew when a file that they name has been replaced.

    Certificates of days or hours are renewed in place while a process runs. Its next connection uses the new ones.
    """

    def __init__(self, config: SecurityConfig) -> None:
        """Raise `ConfigError` if a file cannot be used."""
        self._config = config
        given = (config.ssl_ca_location, config.ssl_certificate_location, config.ssl_key_location)
        self._paths = [] if config.ssl_context is not None else [path for path in given if path is not None]
        self._seen = self._identities()
        self._context = tls_context(config)

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection; None without TLS.

        The last usable one, if the files are just being replaced: a certificate without its key, for example.
        """
        found = self._identities()
        if found != self._seen:
            self._seen = found
            try:
                self._context = tls_context(self._config)
            except ConfigError as error:
                kept = "%s; connections keep the previous certificates until the file is replaced"
                log_guarded(_log, logging.WARNING, kept, error)
            else:
                log_guarded(_log, logging.INFO, "the certificates of %s were reloaded", ", ".join(self._paths))
        return self._context

    def _identities(self) -> list[tuple[int, int, int] | None]:
        return [_identity_of(path) for path in self._paths]


def _identity_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a setting is a str
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


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
    """Describe the fault and give advice; None if the connection was only cut off: that points to no setting."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, host)
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not reason or "UNEXPECTED_EOF" in reason:
        return None
    if "CERTIFICATE_EXPIRED" in reason:
        return (
            f"this client's certificate has expired by the broker's clock ({reason}): renew the file that "
            "ssl.certificate.location names; the next connection reads it"
        )
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


class Login:
    """Logs connections in, with one set of credentials."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._mechanism = config.sasl_mechanism or ""
        self._token_calls: dict[asyncio.Future[str], float] = {}

    async def log_in(self, request: SendRequest, features: BrokerFeatures) -> int:
        """Log in; return the session's lifetime in milliseconds, 0 if it is unlimited (KIP-368).

        Raises `AuthenticationError` if the broker refuses the login.
        """
        handshake_version = _version(features, Api.SASL_HANDSHAKE)
        version = _version(features, Api.SASL_AUTHENTICATE)
        handshake = codec.encode_sasl_handshake(self._mechanism, handshake_version)
        body = await request(Api.SASL_HANDSHAKE, handshake_version, handshake)
        agreed = codec.decode_sasl_handshake(body, handshake_version)
        if agreed.error_code:
            raise self._refused_mechanism(agreed.error_code, agreed.mechanisms)
        return await self._authenticate(request, version)

    async def _authenticate(self, request: SendRequest, version: int) -> int:
        mechanism = await self._new_mechanism()
        error_detail = ""
        for rounds in range(_MOST_ROUNDS):
            message = await self._in_thread(mechanism.auth_bytes)
            body = await request(Api.SASL_AUTHENTICATE, version, codec.encode_sasl_authenticate(message, version))
            response = codec.decode_sasl_authenticate(body, version)
            if response.error_code:
                raise self._refused_login(response.error_code, response.message or error_detail)
            if not rounds and self._mechanism.startswith("SCRAM"):
                self._check_iterations(response.auth_bytes)
            await self._in_thread(lambda: mechanism.receive(response.auth_bytes))  # noqa: B023 - awaited here
            if mechanism.is_done():
                if not mechanism.is_authenticated():
                    break
                return response.session_lifetime_ms
            error_detail = response.auth_bytes.decode(errors="replace") if self._mechanism == "OAUTHBEARER" else ""
        raise AuthenticationError(
            f"the broker's responses to {self._login_name()} are not valid {self._mechanism} messages"
        )

    def _check_iterations(self, message: bytes) -> None:
        """Refuse few iterations of SCRAM, as Java's client does: a false broker could soon guess the password.

        Raises `AuthenticationError`.
        """
        found = _SERVER_FIRST.fullmatch(message)
        if found is None:
            raise self._not_proven("no server-first-message of RFC 5802")
        if int(found[1]) < _LEAST_ITERATIONS:
            raise AuthenticationError(
                f"the broker's response to {self._login_name()} asks for {int(found[1])} iterations, at least "
                f"{_LEAST_ITERATIONS} are needed to protect the password: set the user's password again at the broker, "
                "with more of them"
            )

    async def _in_thread(self, step: Callable[[], Any]) -> Any:
        def mapped() -> Any:
            try:
                return step()
            except MemoryError:
                raise
            except Exception as error:  # raised by a mechanism: a wrong signature, a missing field, invalid text
                raise self._not_proven(type(error).__name__) from None

        return await in_a_thread(mapped)

    def _not_proven(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"the broker's response to {self._login_name()} does not prove that it knows the password, "
            f"or is not {self._mechanism} ({reason})"
        )

    @property
    def obstacle(self) -> str:
        """The reason why a login has not finished."""
        hangs = any(not call.done() for call in self._token_calls)
        return "sasl.oauth.token.provider has not returned" if hangs else "the login did not finish"

    async def _token(self, provider: Callable[[], str]) -> str:
        """Return the first token of a call, also to the logins that come while the provider is called.

        A call that never returns keeps its thread: the more of them there are, the later another one begins.
        """
        now_s = asyncio.get_running_loop().time()
        calls = {call: began_s for call, began_s in self._token_calls.items() if not call.done()}
        if now_s >= max(calls.values(), default=now_s) + _TOKEN_PATIENCE_S * len(calls):
            call = in_a_thread(lambda: _new_token(provider))
            call.add_done_callback(asyncio.Future.exception)  # it may fail when no login waits for it any more
            calls[call] = now_s
        self._token_calls = calls
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def _new_mechanism(self) -> Any:
        config = self._config
        oauth: Any = SaslMechanismOAuth
        plain: Any = SaslMechanismPlain
        scram: Any = SaslMechanismScram
        if self._mechanism == "OAUTHBEARER":
            assert config.sasl_oauth_token_provider is not None
            token = await self._token(config.sasl_oauth_token_provider)
            return oauth(sasl_oauth_token_provider=_Token(token, dict(config.sasl_oauth_extensions)))
        if self._mechanism == "PLAIN":
            return plain(sasl_plain_username=config.sasl_username, sasl_plain_password=config.sasl_password)
        username = (config.sasl_username or "").replace("=", "=3D").replace(",", "=2C")  # RFC 5802, 5.1
        return scram(
            sasl_plain_username=username,
            sasl_plain_password=config.sasl_password,
            sasl_mechanism=self._mechanism,
        )

    def _login_name(self) -> str:
        user = self._config.sasl_username
        return f"the login by {self._mechanism}" + ("" if user is None else f" as {user!r}")

    def _refused_mechanism(self, error_code: int, mechanisms: tuple[str, ...]) -> AuthenticationError:
        if error_code == _UNSUPPORTED_SASL_MECHANISM:
            sentence = (
                f"the listener does not accept sasl.mechanism={self._mechanism}; "
                f"it accepts {', '.join(mechanisms) or 'none'}: set one of those, or have it enabled at the broker"
            )
        elif error_code == _ILLEGAL_SASL_STATE:
            plain = "SSL" if self._config.uses_tls else "PLAINTEXT"
            sentence = (
                f"the listener accepts no logins: set security.protocol={plain}, or connect to a listener with SASL"
            )
        else:
            sentence = f"{self._login_name()} returned {error_name(error_code)}"
        return AuthenticationError(sentence, error_code=error_code)

    def _refused_login(self, error_code: int, message: str) -> AuthenticationError:
        sentence = f"{self._login_name()} was refused" + (f": {message}" if message else "")
        if error_code != _SASL_AUTHENTICATION_FAILED:
            sentence += f" ({error_name(error_code)})"
        what = "the token" if self._mechanism == "OAUTHBEARER" else "sasl.username and sasl.password"
        return AuthenticationError(f"{sentence.rstrip('.')}; check {what}", error_code=error_code)


async def refuse_listener_that_requires_sasl(request: SendRequest, features: BrokerFeatures, *, uses_tls: bool) -> None:
    """Raise `AuthenticationError` if the listener of a connection without a login requires one.

    Such a listener responds to ApiVersions and closes the connection at any other request except SaslHandshake, whose
    response lists the mechanisms that it accepts.
    """
    version = common_version(SPOKEN_VERSIONS[Api.SASL_HANDSHAKE], features.versions.get(Api.SASL_HANDSHAKE))
    if version is None:
        return
    body = await request(Api.SASL_HANDSHAKE, version, codec.encode_sasl_handshake(_NO_MECHANISM, version))
    response = codec.decode_sasl_handshake(body, version)
    if response.error_code == _UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationError(
            f"the listener requires a login: set security.protocol={'SASL_SSL' if uses_tls else 'SASL_PLAINTEXT'}, "
            f"and sasl.mechanism to one that it accepts: {', '.join(response.mechanisms) or 'none'}",
            error_code=response.error_code,
        )


class _Token(AbstractTokenProvider):
    """One token for one login."""

    def __init__(self, token: str, extensions: dict[str, str]) -> None:
        self._token = token
        self._extensions = extensions

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


def _new_token(provider: Callable[[], str]) -> str:
    try:
        token = provider()
    except BaseException as error:
        raise AuthenticationError(f"sasl.oauth.token.provider raised {type(error).__name__}: no token") from None
    if not isinstance(token, str) or not token:
        raise AuthenticationError(
            f"sasl.oauth.token.provider has to return the token as a str, and returned {type(token).__name__}"
        )
    return token


def _version(features: BrokerFeatures, api: Api) -> int:
    version = common_version(SPOKEN_VERSIONS[api], features.versions.get(api))
    if version is None:
        raise AuthenticationError(
            f"the broker does not support {api.kafka_name} v{SPOKEN_VERSIONS[api][0]}, which logins of this "
            "client need: use Apache Kafka 2.2 or newer"
        )
    return version
