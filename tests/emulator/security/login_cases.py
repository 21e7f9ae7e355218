"""Logins, right and wrong, with the responses of Apache Kafka 4.4: mechanism x credential x order of requests.

`tests/interop/raw_wire/test_logins.py` checks this table against that broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from tests.emulator.security.login_script import (
    CLOSED,
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
_EXPIRED: Final = {"iat": 1000, "exp": 1001}

SHAKEN: Final = "SaslHandshake: 0 of 4 mechanisms"
SERVED: Final = "Metadata: 0"
NOT_SERVED: Final = "Metadata: closed"
LOGGED_IN: Final = "SaslAuthenticate: 0 nothing"
CHALLENGE: Final = "SaslAuthenticate: 0 challenge"
FOR_A_SECOND: Final = "SaslAuthenticate: 0 nothing for 1 s"
FOR_FIVE_MINUTES: Final = "SaslAuthenticate: 0 nothing for 300 s"
INVALID: Final = 'SaslAuthenticate: 0 {"status":"invalid_token"}'
REFUSED: Final = 'SaslAuthenticate: 58 {"status":"invalid_token"}'
CUT_OFF: Final = "SaslAuthenticate: closed"
NOT_DUE: Final = "SaslAuthenticate: 34 SaslAuthenticate request received after successful authentication"
VERSIONS: Final = "ApiVersions: 0"
WRONG_PASSWORD: Final = "SaslAuthenticate: 58 Authentication failed: Invalid username or password"
OTHER_ID: Final = (
    "SaslAuthenticate: 58 Authentication failed: Client requested an authorization id that is different from username"
)
OTHER_NAME: Final = (
    "SaslAuthenticate: 58 Authentication failed: Client requested an authorization id (limited) that is different from "
    "the token's principal name (worker)"
)


def _failed(mechanism: str) -> str:
    why = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
    return f"SaslAuthenticate: 58 {why} {mechanism}"


def _parts(count: int) -> str:
    return f"SaslAuthenticate: 58 Invalid SASL/PLAIN response: expected 3 tokens, got {count}"


class Case(NamedTuple):
    """A script for a listener, and the transcript of Apache Kafka."""

    listener: str
    run: Script
    transcript: list[str]


PLAIN_TOKENS: Final = {
    "right": (plain_token(), LOGGED_IN),
    "wrong password": (plain_token(password=WRONG), WRONG_PASSWORD),
    "unknown user": (plain_token("nobody"), WRONG_PASSWORD),
    "no user": (plain_token(""), "SaslAuthenticate: 58 Authentication failed: username not specified"),
    "no password": (plain_token(password=""), "SaslAuthenticate: 58 Authentication failed: password not specified"),
    "its own authorization id": (plain_token(authorization_id=USER), LOGGED_IN),
    "another authorization id": (plain_token(authorization_id=OTHER), OTHER_ID),
    "two parts": (b"worker\0password", _parts(2)),
    "four parts": (b"\0worker\0password\0more", _parts(4)),
    "an empty token": (b"", _parts(1)),
    "bytes that are no text": (b"\xff\xfe\0\xff\0\xff", WRONG_PASSWORD),
}
"""Tokens of PLAIN, and the responses."""

REFUSED_BY_SCRAM: Final = {
    "its own authorization id": (b"n,a=worker,n=worker,r=nonce", b""),
    "channel binding": (b"p=tls-unique,,n=worker,r=nonce",),
    "channel binding possible": (b"y,,n=worker,r=nonce",),
    "a mandatory extension": (b"n,,m=more,n=worker,r=nonce", b""),
    "an extension": (b"n,,n=worker,r=nonce,tokenauth=false", b""),
    "no nonce": (b"n,,n=worker,r=",),
    "a name that is not escaped": (b"n,,n=a=b,r=nonce",),
    "garbage at first": (b"\0\1\2",),
    "garbage at last": (b"n,,n=worker,r=nonce", b"\0\1\2"),
    "another nonce at last": (b"n,,n=worker,r=nonce", b"c=biws,r=another,p=" + b"A" * 43 + b"="),
}
"""Tokens of which the last is refused."""

INVALID_BEARERS: Final[dict[str, Script]] = {
    "expired": _bearer(_EXPIRED, more=_HEARD),
    "of the future": _bearer({"iat": 1e11, "exp": 2e11}, more=_HEARD),
    "expires before it was issued": _bearer({"iat": 2e9, "exp": 1.9e9}, more=_HEARD),
    "without expiry": _bearer({"exp": None}, more=_HEARD),
    "expiry in words": _bearer({"exp": "soon"}, more=_HEARD),
    "without subject": _bearer({"sub": None}, more=_HEARD),
    "blank subject": _bearer({"sub": " "}, more=_HEARD),
    "a number as subject": _bearer({"sub": 7}, more=_HEARD),
    "signed": lambda script: _login("OAUTHBEARER", script.bearer()[:-2] + b"c2ln\1\1", _HEARD)(script),
    "another algorithm": _bearer(header={"alg": "RS256"}, more=_HEARD),
    "two parts": _login("OAUTHBEARER", bearer("abc.def"), _HEARD),
    "no JSON": _login("OAUTHBEARER", bearer("YWJj.YWJj."), _HEARD),
}
"""Logins by OAUTHBEARER that get an error token, and a refusal once they have acknowledged it."""

BEARERS: Final[dict[str, tuple[Script, list[str]]]] = {
    "right": (_bearer(), [FOR_FIVE_MINUTES, SERVED]),
    "expired, and then a good one": (
        lambda script: _login("OAUTHBEARER", script.bearer(_EXPIRED), script.bearer())(script),
        [INVALID, FOR_FIVE_MINUTES, SERVED],
    ),
    "without algorithm": (_bearer(header={"typ": "JWT"}, more=_HEARD), [CUT_OFF, CUT_OFF, NOT_SERVED]),
    "its own authorization id": (_bearer(authorization_id=USER), [FOR_FIVE_MINUTES, SERVED]),
    "another authorization id": (_bearer(authorization_id=OTHER), [OTHER_NAME, NOT_SERVED]),
    "basic instead of bearer": (_login("OAUTHBEARER", b"n,,\1auth=Basic abc\1\1"), [CUT_OFF, NOT_SERVED]),
    "with extensions": (
        lambda script: _login("OAUTHBEARER", script.bearer()[:-1] + b"traceId=123\1\1")(script),
        [FOR_FIVE_MINUTES, SERVED],
    ),
    "garbage": (_login("OAUTHBEARER", b"garbage"), [_failed("OAUTHBEARER"), NOT_SERVED]),
}
"""Other logins by OAUTHBEARER."""

BARE: Final[dict[str, tuple[Script, list[str]]]] = {
    "PLAIN in bare tokens, right": (_bare("PLAIN", plain_token()), ["token: nothing", SERVED]),
    "PLAIN in bare tokens, wrong password": (
        _bare("PLAIN", plain_token(password=WRONG)),
        ["token: closed", NOT_SERVED],
    ),
    "PLAIN in bare tokens, two parts": (_bare("PLAIN", b"worker\0password"), ["token: closed", NOT_SERVED]),
    "SCRAM in bare tokens, right": (_bare_scram(GOOD), ["token: challenge", "token: proof", SERVED]),
    "SCRAM in bare tokens, wrong password": (_bare_scram(WRONG), ["token: challenge", "token: closed", NOT_SERVED]),
    "OAUTHBEARER in bare tokens, right": (
        lambda script: _bare("OAUTHBEARER", script.bearer())(script),
        ["token: nothing", SERVED],
    ),
    "OAUTHBEARER in bare tokens, expired": (
        lambda script: _bare("OAUTHBEARER", script.bearer(_EXPIRED), _HEARD)(script),
        ['token: {"status":"invalid_token"}', "token: closed", NOT_SERVED],
    ),
    "a request where bare tokens are due": (
        _steps(lambda script: script.handshake("PLAIN", 0), _METADATA),
        [NOT_SERVED],
    ),
}
"""SaslHandshake v0, after which tokens are no requests."""


def _handshake(mechanism: str, version: int = 1) -> Script:
    return lambda script: script.handshake(mechanism, version)


def _raw(data: bytes, what: str = "request") -> Script:
    return lambda script: script.raw(data, what)


def _scope(missing: int) -> str:
    return f'SaslAuthenticate: {missing} {{"status":"insufficient_scope", "scope":"[read, write]"}}'


_RIGHT: Final = _token(plain_token())
_FIRST_OF_SCRAM: Final = _token(b"n,,n=worker,r=nonce")
_BAD_MECHANISM: Final = "SaslHandshake: 33 of 4 mechanisms"
_LATE_HANDSHAKE: Final = "SaslHandshake: 34 of 0 mechanisms"

ORDERS: Final[dict[str, tuple[Script, list[str]]]] = {
    "PLAIN, v0 of SaslAuthenticate": (_steps(_PLAIN, _token(plain_token(), 0), _METADATA), [SHAKEN, LOGGED_IN, SERVED]),
    "PLAIN, v1 of SaslAuthenticate": (_steps(_PLAIN, _token(plain_token(), 1), _METADATA), [SHAKEN, LOGGED_IN, SERVED]),
    # the handshake
    "a mechanism that is not enabled": (_steps(_handshake("GSSAPI"), _ENDS), [_BAD_MECHANISM, CLOSED]),
    "a mechanism that is not enabled, v0": (_steps(_handshake("GSSAPI", 0), _ENDS), [_BAD_MECHANISM, CLOSED]),
    "a mechanism in small letters": (_steps(_handshake("plain"), _ENDS), [_BAD_MECHANISM, CLOSED]),
    "versions before the handshake": (
        _steps(_VERSIONS, _PLAIN, _RIGHT, _METADATA),
        [VERSIONS, SHAKEN, LOGGED_IN, SERVED],
    ),
    # requests that are not due
    "Metadata at first": (_METADATA, [NOT_SERVED]),
    "SaslAuthenticate at first": (_RIGHT, [CUT_OFF]),
    "Metadata after ApiVersions": (_steps(_VERSIONS, _METADATA), [VERSIONS, NOT_SERVED]),
    "SaslAuthenticate after ApiVersions": (_steps(_VERSIONS, _RIGHT), [VERSIONS, CUT_OFF]),
    "ApiVersions twice": (_steps(_VERSIONS, _VERSIONS), [VERSIONS, "ApiVersions: closed"]),
    "ApiVersions of version 99, and again": (
        _steps(lambda script: script.unknown_versions(), _VERSIONS, _PLAIN, _RIGHT, _METADATA),
        ["ApiVersions v99: 16 bytes", VERSIONS, SHAKEN, LOGGED_IN, SERVED],
    ),
    "ApiVersions of software without a name, and again": (
        _steps(lambda script: script.versions(software="-"), _VERSIONS, _PLAIN, _RIGHT),
        ["ApiVersions: 42", VERSIONS, SHAKEN, LOGGED_IN],
    ),
    "API key 999": (_raw(b"\x03\xe7\0\0\0\0\0\1\xff\xff"), ["request: closed"]),
    "garbage": (_raw(b"GET / HTTP/1.1\r\n\r\n"), ["request: closed"]),
    "a token of Kafka 0.9": (_raw(b"\x60\x82\0\1\2\3\4\5\6\7", "token"), ["token: closed"]),
    "a frame above the limit": (_steps(_PLAIN, _raw(b"\0" * 5000)), [SHAKEN, "request: closed"]),
    "Metadata instead of a token": (_steps(_PLAIN, _METADATA, _ENDS), [SHAKEN, "Metadata: 34", CLOSED]),
    "ApiVersions instead of a token": (_steps(_PLAIN, _VERSIONS, _ENDS), [SHAKEN, "ApiVersions: 34", CLOSED]),
    "SaslHandshake instead of a token": (_steps(_PLAIN, _PLAIN, _ENDS), [SHAKEN, _LATE_HANDSHAKE, CLOSED]),
    "Metadata between two tokens": (
        _steps(_handshake(SCRAM[0]), _FIRST_OF_SCRAM, _METADATA, _ENDS),
        [SHAKEN, CHALLENGE, "Metadata: 34", CLOSED],
    ),
    # after the login
    "ApiVersions after the login": (
        _steps(_logged_in, _VERSIONS, _VERSIONS, _METADATA),
        [SHAKEN, LOGGED_IN, VERSIONS, VERSIONS, SERVED],
    ),
    "SaslHandshake after the login": (
        _steps(_logged_in, _PLAIN, _METADATA),
        [SHAKEN, LOGGED_IN, _LATE_HANDSHAKE, SERVED],
    ),
    "SaslAuthenticate after the login": (
        _steps(_logged_in, _RIGHT, _METADATA),
        [SHAKEN, LOGGED_IN, NOT_DUE, SERVED],
    ),
    "a large request after the login": (
        _steps(_logged_in, lambda script: script.versions(software="r" * 5000), _METADATA),
        [SHAKEN, LOGGED_IN, VERSIONS, SERVED],
    ),
}
"""Requests in other orders, at a listener with SASL."""

BRIEF: Final[dict[str, tuple[Script, list[str]]]] = {
    "OAUTHBEARER, all scopes": (_bearer({"scope": ["write", "read"]}), [SHAKEN, FOR_A_SECOND, SERVED]),
    "OAUTHBEARER, a scope is missing": (
        _bearer({"scope": "read"}, more=_HEARD),
        [SHAKEN, _scope(0), _scope(58), NOT_SERVED],
    ),
    "a limited session": (_steps(_logged_in, _METADATA), [SHAKEN, FOR_A_SECOND, SERVED]),
    "a limited session, v0 of SaslAuthenticate": (
        _steps(_PLAIN, _token(plain_token(), 0), _METADATA),
        [SHAKEN, LOGGED_IN, SERVED],
    ),
    "again, SCRAM": (
        _steps(_scram(SCRAM[0]), _scram(SCRAM[0])),
        [SHAKEN, CHALLENGE, "SaslAuthenticate: 0 proof for 1 s", SERVED] * 2,
    ),
}
"""Sessions with a limit (KIP-368)."""

WITHIN_A_SESSION: Final[dict[str, tuple[Script, list[str]]]] = {
    "again, right": (_steps(_logged_in, _METADATA), [SHAKEN, FOR_A_SECOND, SERVED]),
    "again, wrong password": (
        _steps(_PLAIN, _token(plain_token(password=WRONG)), _METADATA),
        [SHAKEN, WRONG_PASSWORD, NOT_SERVED],
    ),
    "again, garbage": (_steps(_PLAIN, _token(b"garbage"), _METADATA), [SHAKEN, _parts(1), NOT_SERVED]),
    "again, as somebody else": (
        _steps(_PLAIN, _token(plain_token(OTHER)), _METADATA),
        [
            SHAKEN,
            "SaslAuthenticate: 58 Cannot change principals during re-authentication from User.worker: User.limited",
            NOT_SERVED,
        ],
    ),
    "again, by another mechanism": (
        _steps(_handshake(SCRAM[0]), _FIRST_OF_SCRAM, _ENDS),
        [SHAKEN, CUT_OFF, CLOSED],
    ),
    "again, by a mechanism that is not enabled": (
        _steps(_handshake("GSSAPI"), _ENDS),
        ["SaslHandshake: closed", CLOSED],
    ),
    "again, Metadata instead of a token": (_steps(_PLAIN, _METADATA, _ENDS), [SHAKEN, "Metadata: 34", CLOSED]),
    "again, twice in a second": (
        _steps(_logged_in, _PLAIN, _METADATA),
        [SHAKEN, FOR_A_SECOND, _LATE_HANDSHAKE, SERVED],
    ),
    "again, in bare tokens": (_bare("PLAIN", plain_token()), [SHAKEN, "token: nothing", SERVED]),
    "SaslAuthenticate within a limited session": (_steps(_RIGHT, _METADATA), [NOT_DUE, SERVED]),
    **{
        f"a session that is over, {name}": (_steps(lambda script: script.session_ends(), *steps), transcript)
        for name, steps, transcript in (
            ("Metadata", (_METADATA,), [NOT_SERVED]),
            ("ApiVersions", (_VERSIONS,), ["ApiVersions: closed"]),
            ("a new login", (_logged_in, _METADATA), [SHAKEN, FOR_A_SECOND, SERVED]),
            ("in silence", (_STAYS,), ["open"]),
        )
    },
}
"""After a login at the listener BRIEF: another login, or the end of the session."""


def _cases() -> Iterator[tuple[str, Case]]:
    for name, (token, said) in PLAIN_TOKENS.items():
        served = SERVED if said == LOGGED_IN else NOT_SERVED
        yield f"PLAIN, {name}", Case("SASL", _login("PLAIN", token), [SHAKEN, said, served])
    for mechanism in SCRAM:
        proven, failed = "SaslAuthenticate: 0 proof", _failed(mechanism)
        for name, run, transcript in (
            ("right", _scram(mechanism), [CHALLENGE, proven, SERVED]),
            ("wrong password", _scram(mechanism, password=WRONG), [CHALLENGE, failed, NOT_SERVED]),
            ("unknown user", _scram(mechanism, "nobody"), [failed, NOT_SERVED]),
        ):
            yield f"{mechanism}, {name}", Case("SASL", run, [SHAKEN, *transcript])
    for name, tokens in REFUSED_BY_SCRAM.items():
        said_last = [CHALLENGE] * (len(tokens) - 1) + [_failed(SCRAM[0]), NOT_SERVED]
        yield f"SCRAM, {name}", Case("SASL", _login(SCRAM[0], *tokens), [SHAKEN, *said_last])
    other_id = _login(SCRAM[0], b"n,a=limited,n=worker,r=nonce")
    yield "SCRAM, another authorization id", Case("SASL", other_id, [SHAKEN, OTHER_ID, NOT_SERVED])
    for name, run in INVALID_BEARERS.items():
        yield f"OAUTHBEARER, {name}", Case("SASL", run, [SHAKEN, INVALID, REFUSED, NOT_SERVED])
    for name, (run, transcript) in BEARERS.items():
        yield f"OAUTHBEARER, {name}", Case("SASL", run, [SHAKEN, *transcript])
    for name, (run, transcript) in BARE.items():
        yield name, Case("SASL", run, [SHAKEN, *transcript])
    for name, (run, transcript) in ORDERS.items():
        yield name, Case("SASL", run, transcript)
    for name, (run, transcript) in BRIEF.items():
        yield name, Case("BRIEF", run, transcript)
    for name, (run, transcript) in WITHIN_A_SESSION.items():
        yield name, Case("BRIEF", _steps(_logged_in, run), [SHAKEN, FOR_A_SECOND, *transcript])
    without = {"SaslHandshake": (_PLAIN, _LATE_HANDSHAKE), "SaslAuthenticate": (_RIGHT, NOT_DUE)}
    for api, (run, said) in without.items():
        yield f"{api} without SASL", Case("PLAINTEXT", _steps(run, _METADATA), [said, SERVED])


CASES: Final[dict[str, Case]] = dict(_cases())
"""Every case, by name."""


class Difference(NamedTuple):
    """A transcript of the emulator that differs, with the reason."""

    transcript: list[str]
    reason: str


DIFFERENCES: Final = {
    "OAUTHBEARER, without algorithm": Difference(
        [SHAKEN, INVALID, REFUSED, NOT_SERVED],
        "Kafka takes the missing header for a fault of its own (a NullPointerException), and so it closes",
    ),
    "OAUTHBEARER, basic instead of bearer": Difference(
        [SHAKEN, _failed("OAUTHBEARER"), NOT_SERVED],
        "Kafka means to answer this, but the sentence that it builds for its log raises, and so it closes",
    ),
}
