"""Logins, right and wrong, with the responses of Apache Kafka: mechanism x credential x order of requests.

`tests/interop/raw_wire/test_logins.py` checks this table against that broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.emulator.security.login_script import (
    GOOD,
    OTHER,
    SCRAM,
    USER,
    WRONG,
    LoginScript,
    bearer,
    plain_token,
)

LISTENERS: Final = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "BRIEF": "SASL_PLAINTEXT"}
MECHANISMS: Final = ("OAUTHBEARER", "PLAIN", *SCRAM)
BRIEF_MS: Final = 1_300
"""The session lifetime at the listener BRIEF."""
SCRAM_USERS: Final = {USER: GOOD, OTHER: GOOD}

_MODULES: Final = "org.apache.kafka.common.security"
_JAAS: Final = {
    "plain": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{GOOD}" user_{OTHER}="{GOOD}";',
    "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
    "oauthbearer": (
        f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker" '
        'unsecuredValidatorAllowableClockSkewMs="3000" unsecuredValidatorRequiredScope="{scope}";'
    ),
}
PROPERTIES: Final[Mapping[str, str]] = {
    "connection.failed.authentication.delay.ms": "0",
    "sasl.server.max.receive.size": "4096",
    "listener.name.brief.connections.max.reauth.ms": str(BRIEF_MS),
    **{f"listener.name.{name}.sasl.enabled.mechanisms": ",".join(MECHANISMS) for name in ("sasl", "brief")},
    **{
        f"listener.name.{name}.{mechanism}.sasl.jaas.config": value.replace("{scope}", scope)
        for name, scope in (("sasl", ""), ("brief", "read write"))
        for mechanism, value in _JAAS.items()
    },
}
"""The settings of the broker, by Kafka's names, without its addresses."""

Script = Callable[[LoginScript], object]


def _login(mechanism: str, token: bytes, *more: bytes) -> Script:
    def run(script: LoginScript) -> None:
        script.handshake(mechanism)
        for each in (token, *more):
            script.token(each)
        script.metadata()

    return run


def _scram(mechanism: str, user: str = USER, password: str = GOOD) -> Script:
    def run(script: LoginScript) -> None:
        script.handshake(mechanism)
        script.scram(mechanism, user, password)
        script.metadata()

    return run


def _scram_tokens(mechanism: str, *tokens: bytes) -> Script:
    return _login(mechanism, tokens[0], *tokens[1:])


def _bearer(
    claims: Mapping[str, object] | None = None,
    *,
    more: bytes | None = None,
    header: Mapping[str, object] | None = None,
    authorization_id: str = "",
) -> Script:
    def run(script: LoginScript) -> None:
        token = script.bearer(claims, header, authorization_id)
        _login("OAUTHBEARER", token, *(() if more is None else (more,)))(script)

    return run


def _bare(mechanism: str, *tokens: bytes) -> Script:
    """Log in by SaslHandshake v0, after which tokens are sent without requests."""

    def run(script: LoginScript) -> None:
        script.handshake(mechanism, 0)
        for token in tokens:
            script.bare_token(token)
        script.metadata()

    return run


def _bare_scram(password: str) -> Script:
    def run(script: LoginScript) -> None:
        script.handshake("SCRAM-SHA-256", 0)
        script.scram("SCRAM-SHA-256", password=password, bare=True)
        script.metadata()

    return run


def _steps(*steps: Callable[[LoginScript], object]) -> Script:
    def run(script: LoginScript) -> None:
        for step in steps:
            step(script)

    return run


def _logged_in(script: LoginScript) -> None:
    script.handshake("PLAIN")
    script.token(plain_token())


_VERSIONS: Script = lambda script: script.versions()  # noqa: E731
_METADATA: Script = lambda script: script.metadata()  # noqa: E731
_ENDS: Script = lambda script: script.ends()  # noqa: E731
_STAYS: Script = lambda script: script.stays()  # noqa: E731
_PLAIN: Script = lambda script: script.handshake("PLAIN")  # noqa: E731


def _token(token: bytes, version: int = 2) -> Script:
    return lambda script: script.token(token, version)


_HEARD: Final = b"\1"
"""The client's acknowledgement that its token was refused."""

SCRIPTS: Final[dict[str, tuple[str, Script]]] = {
    # PLAIN x credential
    "PLAIN, right": ("SASL", _login("PLAIN", plain_token())),
    "PLAIN, v0 of SaslAuthenticate": ("SASL", _steps(_PLAIN, _token(plain_token(), 0), _METADATA)),
    "PLAIN, v1 of SaslAuthenticate": ("SASL", _steps(_PLAIN, _token(plain_token(), 1), _METADATA)),
    "PLAIN, wrong password": ("SASL", _login("PLAIN", plain_token(password=WRONG))),
    "PLAIN, unknown user": ("SASL", _login("PLAIN", plain_token("nobody"))),
    "PLAIN, no user": ("SASL", _login("PLAIN", plain_token(""))),
    "PLAIN, no password": ("SASL", _login("PLAIN", plain_token(password=""))),
    "PLAIN, its own authorization id": ("SASL", _login("PLAIN", plain_token(authorization_id=USER))),
    "PLAIN, another authorization id": ("SASL", _login("PLAIN", plain_token(authorization_id=OTHER))),
    "PLAIN, two parts": ("SASL", _login("PLAIN", b"worker\0password")),
    "PLAIN, four parts": ("SASL", _login("PLAIN", b"\0worker\0password\0more")),
    "PLAIN, an empty token": ("SASL", _login("PLAIN", b"")),
    "PLAIN, bytes that are no text": ("SASL", _login("PLAIN", b"\xff\xfe\0\xff\0\xff")),
    # SCRAM x credential
    **{f"{mechanism}, right": ("SASL", _scram(mechanism)) for mechanism in SCRAM},
    **{f"{mechanism}, wrong password": ("SASL", _scram(mechanism, password=WRONG)) for mechanism in SCRAM},
    **{f"{mechanism}, unknown user": ("SASL", _scram(mechanism, "nobody")) for mechanism in SCRAM},
    "SCRAM, another authorization id": ("SASL", _scram_tokens(SCRAM[0], b"n,a=limited,n=worker,r=nonce")),
    "SCRAM, its own authorization id": ("SASL", _scram_tokens(SCRAM[0], b"n,a=worker,n=worker,r=nonce", b"")),
    "SCRAM, channel binding": ("SASL", _scram_tokens(SCRAM[0], b"p=tls-unique,,n=worker,r=nonce")),
    "SCRAM, channel binding possible": ("SASL", _scram_tokens(SCRAM[0], b"y,,n=worker,r=nonce")),
    "SCRAM, a mandatory extension": ("SASL", _scram_tokens(SCRAM[0], b"n,,m=more,n=worker,r=nonce", b"")),
    "SCRAM, an extension": ("SASL", _scram_tokens(SCRAM[0], b"n,,n=worker,r=nonce,tokenauth=false", b"")),
    "SCRAM, no nonce": ("SASL", _scram_tokens(SCRAM[0], b"n,,n=worker,r=")),
    "SCRAM, a name that is not escaped": ("SASL", _scram_tokens(SCRAM[0], b"n,,n=a=b,r=nonce")),
    "SCRAM, garbage at first": ("SASL", _scram_tokens(SCRAM[0], b"\0\1\2")),
    "SCRAM, garbage at last": ("SASL", _scram_tokens(SCRAM[0], b"n,,n=worker,r=nonce", b"\0\1\2")),
    "SCRAM, another nonce at last": (
        "SASL",
        _scram_tokens(SCRAM[0], b"n,,n=worker,r=nonce", b"c=biws,r=another,p=" + b"A" * 43 + b"="),
    ),
    # OAUTHBEARER x credential
    "OAUTHBEARER, right": ("SASL", _bearer()),
    "OAUTHBEARER, expired": ("SASL", _bearer({"iat": 1000, "exp": 1001}, more=_HEARD)),
    "OAUTHBEARER, expired, and then a good one": (
        "SASL",
        lambda script: _login("OAUTHBEARER", script.bearer({"iat": 1000, "exp": 1001}), script.bearer())(script),
    ),
    "OAUTHBEARER, of the future": ("SASL", _bearer({"iat": 1e11, "exp": 2e11}, more=_HEARD)),
    "OAUTHBEARER, expires before it was issued": ("SASL", _bearer({"iat": 2e9, "exp": 1.9e9}, more=_HEARD)),
    "OAUTHBEARER, without expiry": ("SASL", _bearer({"exp": None}, more=_HEARD)),
    "OAUTHBEARER, expiry in words": ("SASL", _bearer({"exp": "soon"}, more=_HEARD)),
    "OAUTHBEARER, without subject": ("SASL", _bearer({"sub": None}, more=_HEARD)),
    "OAUTHBEARER, blank subject": ("SASL", _bearer({"sub": " "}, more=_HEARD)),
    "OAUTHBEARER, a number as subject": ("SASL", _bearer({"sub": 7}, more=_HEARD)),
    "OAUTHBEARER, signed": (
        "SASL",
        lambda script: _login("OAUTHBEARER", script.bearer()[:-2] + b"c2ln\1\1", _HEARD)(script),
    ),
    "OAUTHBEARER, without algorithm": ("SASL", _bearer(header={"typ": "JWT"}, more=_HEARD)),
    "OAUTHBEARER, another algorithm": ("SASL", _bearer(header={"alg": "RS256"}, more=_HEARD)),
    "OAUTHBEARER, two parts": ("SASL", _login("OAUTHBEARER", bearer("abc.def"), _HEARD)),
    "OAUTHBEARER, no JSON": ("SASL", _login("OAUTHBEARER", bearer("YWJj.YWJj."), _HEARD)),
    "OAUTHBEARER, its own authorization id": ("SASL", _bearer(authorization_id=USER)),
    "OAUTHBEARER, another authorization id": ("SASL", _bearer(authorization_id=OTHER)),
    "OAUTHBEARER, basic instead of bearer": ("SASL", _login("OAUTHBEARER", b"n,,\1auth=Basic abc\1\1")),
    "OAUTHBEARER, with extensions": (
        "SASL",
        lambda script: _login("OAUTHBEARER", script.bearer()[:-1] + b"traceId=123\1\1")(script),
    ),
    "OAUTHBEARER, garbage": ("SASL", _login("OAUTHBEARER", b"garbage")),
    "OAUTHBEARER, all scopes": ("BRIEF", _bearer({"scope": ["write", "read"]})),
    "OAUTHBEARER, a scope is missing": ("BRIEF", _bearer({"scope": "read"}, more=_HEARD)),
    # the handshake
    "a mechanism that is not enabled": ("SASL", _steps(lambda script: script.handshake("GSSAPI"), _ENDS)),
    "a mechanism that is not enabled, v0": ("SASL", _steps(lambda script: script.handshake("GSSAPI", 0), _ENDS)),
    "a mechanism in small letters": ("SASL", _steps(lambda script: script.handshake("plain"), _ENDS)),
    "versions before the handshake": ("SASL", _steps(_VERSIONS, _PLAIN, _token(plain_token()), _METADATA)),
    # requests that are not due
    "Metadata at first": ("SASL", _METADATA),
    "SaslAuthenticate at first": ("SASL", _token(plain_token())),
    "Metadata after ApiVersions": ("SASL", _steps(_VERSIONS, _METADATA)),
    "SaslAuthenticate after ApiVersions": ("SASL", _steps(_VERSIONS, _token(plain_token()))),
    "ApiVersions twice": ("SASL", _steps(_VERSIONS, _VERSIONS)),
    "ApiVersions of a version that nobody has, and again": (
        "SASL",
        _steps(lambda script: script.unknown_versions(), _VERSIONS, _PLAIN, _token(plain_token()), _METADATA),
    ),
    "ApiVersions of software without a name, and again": (
        "SASL",
        _steps(lambda script: script.versions(software="-"), _VERSIONS, _PLAIN, _token(plain_token())),
    ),
    "an API that nobody has": ("SASL", lambda script: script.raw(b"\x03\xe7\0\0\0\0\0\1\xff\xff", "request")),
    "garbage": ("SASL", lambda script: script.raw(b"GET / HTTP/1.1\r\n\r\n", "request")),
    "a token of Kafka 0.9": ("SASL", lambda script: script.raw(b"\x60\x82\0\1\2\3\4\5\6\7", "token")),
    "a frame above the limit": ("SASL", _steps(_PLAIN, lambda script: script.raw(b"\0" * 5000, "request"))),
    "Metadata instead of a token": ("SASL", _steps(_PLAIN, _METADATA, _ENDS)),
    "ApiVersions instead of a token": ("SASL", _steps(_PLAIN, _VERSIONS, _ENDS)),
    "SaslHandshake instead of a token": ("SASL", _steps(_PLAIN, _PLAIN, _ENDS)),
    "Metadata between two tokens": (
        "SASL",
        _steps(lambda script: script.handshake(SCRAM[0]), _token(b"n,,n=worker,r=nonce"), _METADATA, _ENDS),
    ),
    # after the login
    "ApiVersions after the login": ("SASL", _steps(_logged_in, _VERSIONS, _VERSIONS, _METADATA)),
    "SaslHandshake after the login": ("SASL", _steps(_logged_in, _PLAIN, _METADATA)),
    "SaslAuthenticate after the login": ("SASL", _steps(_logged_in, _token(plain_token()), _METADATA)),
    "a large request after the login": (
        "SASL",
        _steps(_logged_in, lambda script: script.versions(software="r" * 5000), _METADATA),
    ),
    # without SASL
    "SaslHandshake without SASL": ("PLAINTEXT", _steps(_PLAIN, _METADATA)),
    "SaslAuthenticate without SASL": ("PLAINTEXT", _steps(_token(plain_token()), _METADATA)),
    # bare tokens
    "PLAIN in bare tokens, right": ("SASL", _bare("PLAIN", plain_token())),
    "PLAIN in bare tokens, wrong password": ("SASL", _bare("PLAIN", plain_token(password=WRONG))),
    "PLAIN in bare tokens, two parts": ("SASL", _bare("PLAIN", b"worker\0password")),
    "SCRAM in bare tokens, right": ("SASL", _bare_scram(GOOD)),
    "SCRAM in bare tokens, wrong password": ("SASL", _bare_scram(WRONG)),
    "OAUTHBEARER in bare tokens, right": (
        "SASL",
        lambda script: _bare("OAUTHBEARER", script.bearer())(script),
    ),
    "OAUTHBEARER in bare tokens, expired": (
        "SASL",
        lambda script: _bare("OAUTHBEARER", script.bearer({"iat": 1000, "exp": 1001}), _HEARD)(script),
    ),
    "a request where bare tokens are due": ("SASL", _steps(lambda script: script.handshake("PLAIN", 0), _METADATA)),
    # KIP-368
    "a limited session": ("BRIEF", _steps(_logged_in, _METADATA)),
    "a limited session, v0 of SaslAuthenticate": ("BRIEF", _steps(_PLAIN, _token(plain_token(), 0), _METADATA)),
    "again, right": ("BRIEF", _steps(_logged_in, _logged_in, _METADATA)),
    "again, SCRAM": ("BRIEF", _steps(_scram(SCRAM[0]), _scram(SCRAM[0]))),
    "again, wrong password": (
        "BRIEF",
        _steps(_logged_in, _PLAIN, _token(plain_token(password=WRONG)), _METADATA),
    ),
    "again, garbage": ("BRIEF", _steps(_logged_in, _PLAIN, _token(b"garbage"), _METADATA)),
    "again, as somebody else": ("BRIEF", _steps(_logged_in, _PLAIN, _token(plain_token(OTHER)), _METADATA)),
    "again, by another mechanism": (
        "BRIEF",
        _steps(_logged_in, lambda script: script.handshake(SCRAM[0]), _token(b"n,,n=worker,r=nonce"), _ENDS),
    ),
    "again, by a mechanism that is not enabled": (
        "BRIEF",
        _steps(_logged_in, lambda script: script.handshake("GSSAPI"), _ENDS),
    ),
    "again, Metadata instead of a token": ("BRIEF", _steps(_logged_in, _PLAIN, _METADATA, _ENDS)),
    "again, twice in a second": ("BRIEF", _steps(_logged_in, _logged_in, _PLAIN, _METADATA)),
    "again, in bare tokens": (
        "BRIEF",
        _steps(
            _logged_in,
            lambda script: script.handshake("PLAIN", 0),
            lambda script: script.bare_token(plain_token()),
            _METADATA,
        ),
    ),
    "SaslAuthenticate within a limited session": ("BRIEF", _steps(_logged_in, _token(plain_token()), _METADATA)),
    "a session that is over, Metadata": ("BRIEF", _steps(_logged_in, lambda script: script.session_ends(), _METADATA)),
    "a session that is over, ApiVersions": (
        "BRIEF",
        _steps(_logged_in, lambda script: script.session_ends(), _VERSIONS),
    ),
    "a session that is over, a new login": (
        "BRIEF",
        _steps(_logged_in, lambda script: script.session_ends(), _logged_in, _METADATA),
    ),
    "a session that is over, in silence": ("BRIEF", _steps(_logged_in, lambda script: script.session_ends(), _STAYS)),
}
"""The listener and the script of each case, by name."""
