"""The transcripts of Apache Kafka 4.4 for each script of `login_cases.py`, and where the emulator differs."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.emulator.security.login_script import CLOSED

SHAKEN = "SaslHandshake: 0 of 4 mechanisms"
LOGGED_IN = "SaslAuthenticate: 0 nothing"
SERVED = "Metadata: 0"
NOT_SERVED = "Metadata: closed"
CHALLENGE = "SaslAuthenticate: 0 challenge"
PROVEN = "SaslAuthenticate: 0 proof"
FOR_A_SECOND = "SaslAuthenticate: 0 nothing for 1 s"
FOR_FIVE_MINUTES = "SaslAuthenticate: 0 nothing for 300 s"
INVALID = 'SaslAuthenticate: 0 {"status":"invalid_token"}'
REFUSED = 'SaslAuthenticate: 58 {"status":"invalid_token"}'
FAILED = (
    "SaslAuthenticate: 58 Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
)
OTHER_ID = (
    "SaslAuthenticate: 58 Authentication failed: Client requested an authorization id that is different from username"
)
OTHER_NAME = (
    "SaslAuthenticate: 58 Authentication failed: Client requested an authorization id (limited) that is different from "
    "the token's principal name (worker)"
)

ANSWERS: Final[dict[str, list[str]]] = {
    "PLAIN, right": [SHAKEN, LOGGED_IN, SERVED],
    "PLAIN, v0 of SaslAuthenticate": [SHAKEN, LOGGED_IN, SERVED],
    "PLAIN, v1 of SaslAuthenticate": [SHAKEN, LOGGED_IN, SERVED],
    "PLAIN, wrong password": [
        SHAKEN,
        "SaslAuthenticate: 58 Authentication failed: Invalid username or password",
        NOT_SERVED,
    ],
    "PLAIN, unknown user": [
        SHAKEN,
        "SaslAuthenticate: 58 Authentication failed: Invalid username or password",
        NOT_SERVED,
    ],
    "PLAIN, no user": [SHAKEN, "SaslAuthenticate: 58 Authentication failed: username not specified", NOT_SERVED],
    "PLAIN, no password": [SHAKEN, "SaslAuthenticate: 58 Authentication failed: password not specified", NOT_SERVED],
    "PLAIN, its own authorization id": [SHAKEN, LOGGED_IN, SERVED],
    "PLAIN, another authorization id": [
        SHAKEN,
        OTHER_ID,
        NOT_SERVED,
    ],
    "PLAIN, two parts": [
        SHAKEN,
        "SaslAuthenticate: 58 Invalid SASL/PLAIN response: expected 3 tokens, got 2",
        NOT_SERVED,
    ],
    "PLAIN, four parts": [
        SHAKEN,
        "SaslAuthenticate: 58 Invalid SASL/PLAIN response: expected 3 tokens, got 4",
        NOT_SERVED,
    ],
    "PLAIN, an empty token": [
        SHAKEN,
        "SaslAuthenticate: 58 Invalid SASL/PLAIN response: expected 3 tokens, got 1",
        NOT_SERVED,
    ],
    "PLAIN, bytes that are no text": [
        SHAKEN,
        "SaslAuthenticate: 58 Authentication failed: Invalid username or password",
        NOT_SERVED,
    ],
    "SCRAM-SHA-256, right": [SHAKEN, CHALLENGE, PROVEN, SERVED],
    "SCRAM-SHA-512, right": [SHAKEN, CHALLENGE, PROVEN, SERVED],
    "SCRAM-SHA-256, wrong password": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM-SHA-512, wrong password": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-512"), NOT_SERVED],
    "SCRAM-SHA-256, unknown user": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM-SHA-512, unknown user": [SHAKEN, FAILED.format("SCRAM-SHA-512"), NOT_SERVED],
    "SCRAM, another authorization id": [
        SHAKEN,
        OTHER_ID,
        NOT_SERVED,
    ],
    "SCRAM, its own authorization id": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, channel binding": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, channel binding possible": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, a mandatory extension": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, an extension": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, no nonce": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, a name that is not escaped": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, garbage at first": [SHAKEN, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, garbage at last": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "SCRAM, another nonce at last": [SHAKEN, CHALLENGE, FAILED.format("SCRAM-SHA-256"), NOT_SERVED],
    "OAUTHBEARER, right": [SHAKEN, FOR_FIVE_MINUTES, SERVED],
    "OAUTHBEARER, expired": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, expired, and then a good one": [SHAKEN, INVALID, FOR_FIVE_MINUTES, SERVED],
    "OAUTHBEARER, of the future": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, expires before it was issued": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, without expiry": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, expiry in words": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, without subject": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, blank subject": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, a number as subject": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, signed": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, without algorithm": [SHAKEN, "SaslAuthenticate: closed", "SaslAuthenticate: closed", NOT_SERVED],
    "OAUTHBEARER, another algorithm": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, two parts": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, no JSON": [SHAKEN, INVALID, REFUSED, NOT_SERVED],
    "OAUTHBEARER, its own authorization id": [SHAKEN, FOR_FIVE_MINUTES, SERVED],
    "OAUTHBEARER, another authorization id": [
        SHAKEN,
        OTHER_NAME,
        NOT_SERVED,
    ],
    "OAUTHBEARER, basic instead of bearer": [SHAKEN, "SaslAuthenticate: closed", NOT_SERVED],
    "OAUTHBEARER, with extensions": [SHAKEN, FOR_FIVE_MINUTES, SERVED],
    "OAUTHBEARER, garbage": [SHAKEN, FAILED.format("OAUTHBEARER"), NOT_SERVED],
    "OAUTHBEARER, all scopes": [SHAKEN, FOR_A_SECOND, SERVED],
    "OAUTHBEARER, a scope is missing": [
        SHAKEN,
        'SaslAuthenticate: 0 {"status":"insufficient_scope", "scope":"[read, write]"}',
        'SaslAuthenticate: 58 {"status":"insufficient_scope", "scope":"[read, write]"}',
        NOT_SERVED,
    ],
    "a mechanism that is not enabled": ["SaslHandshake: 33 of 4 mechanisms", CLOSED],
    "a mechanism that is not enabled, v0": ["SaslHandshake: 33 of 4 mechanisms", CLOSED],
    "a mechanism in small letters": ["SaslHandshake: 33 of 4 mechanisms", CLOSED],
    "versions before the handshake": ["ApiVersions: 0", SHAKEN, LOGGED_IN, SERVED],
    "Metadata at first": [NOT_SERVED],
    "SaslAuthenticate at first": ["SaslAuthenticate: closed"],
    "Metadata after ApiVersions": ["ApiVersions: 0", NOT_SERVED],
    "SaslAuthenticate after ApiVersions": ["ApiVersions: 0", "SaslAuthenticate: closed"],
    "ApiVersions twice": ["ApiVersions: 0", "ApiVersions: closed"],
    "ApiVersions of a version that nobody has, and again": [
        "ApiVersions v99: 16 bytes",
        "ApiVersions: 0",
        SHAKEN,
        LOGGED_IN,
        SERVED,
    ],
    "ApiVersions of software without a name, and again": ["ApiVersions: 42", "ApiVersions: 0", SHAKEN, LOGGED_IN],
    "an API that nobody has": ["request: closed"],
    "garbage": ["request: closed"],
    "a token of Kafka 0.9": ["token: closed"],
    "a frame above the limit": [SHAKEN, "request: closed"],
    "Metadata instead of a token": [SHAKEN, "Metadata: 34", CLOSED],
    "ApiVersions instead of a token": [SHAKEN, "ApiVersions: 34", CLOSED],
    "SaslHandshake instead of a token": [SHAKEN, "SaslHandshake: 34 of 0 mechanisms", CLOSED],
    "Metadata between two tokens": [SHAKEN, CHALLENGE, "Metadata: 34", CLOSED],
    "ApiVersions after the login": [SHAKEN, LOGGED_IN, "ApiVersions: 0", "ApiVersions: 0", SERVED],
    "SaslHandshake after the login": [SHAKEN, LOGGED_IN, "SaslHandshake: 34 of 0 mechanisms", SERVED],
    "SaslAuthenticate after the login": [
        SHAKEN,
        LOGGED_IN,
        "SaslAuthenticate: 34 SaslAuthenticate request received after successful authentication",
        SERVED,
    ],
    "a large request after the login": [SHAKEN, LOGGED_IN, "ApiVersions: 0", SERVED],
    "SaslHandshake without SASL": ["SaslHandshake: 34 of 0 mechanisms", SERVED],
    "SaslAuthenticate without SASL": [
        "SaslAuthenticate: 34 SaslAuthenticate request received after successful authentication",
        SERVED,
    ],
    "PLAIN in bare tokens, right": [SHAKEN, "token: nothing", SERVED],
    "PLAIN in bare tokens, wrong password": [SHAKEN, "token: closed", NOT_SERVED],
    "PLAIN in bare tokens, two parts": [SHAKEN, "token: closed", NOT_SERVED],
    "SCRAM in bare tokens, right": [SHAKEN, "token: challenge", "token: proof", SERVED],
    "SCRAM in bare tokens, wrong password": [SHAKEN, "token: challenge", "token: closed", NOT_SERVED],
    "OAUTHBEARER in bare tokens, right": [SHAKEN, "token: nothing", SERVED],
    "OAUTHBEARER in bare tokens, expired": [SHAKEN, 'token: {"status":"invalid_token"}', "token: closed", NOT_SERVED],
    "a request where bare tokens are due": [SHAKEN, NOT_SERVED],
    "a limited session": [SHAKEN, FOR_A_SECOND, SERVED],
    "a limited session, v0 of SaslAuthenticate": [SHAKEN, LOGGED_IN, SERVED],
    "again, right": [SHAKEN, FOR_A_SECOND, SHAKEN, FOR_A_SECOND, SERVED],
    "again, SCRAM": [
        SHAKEN,
        CHALLENGE,
        "SaslAuthenticate: 0 proof for 1 s",
        SERVED,
        SHAKEN,
        CHALLENGE,
        "SaslAuthenticate: 0 proof for 1 s",
        SERVED,
    ],
    "again, wrong password": [
        SHAKEN,
        FOR_A_SECOND,
        SHAKEN,
        "SaslAuthenticate: 58 Authentication failed: Invalid username or password",
        NOT_SERVED,
    ],
    "again, garbage": [
        SHAKEN,
        FOR_A_SECOND,
        SHAKEN,
        "SaslAuthenticate: 58 Invalid SASL/PLAIN response: expected 3 tokens, got 1",
        NOT_SERVED,
    ],
    "again, as somebody else": [
        SHAKEN,
        FOR_A_SECOND,
        SHAKEN,
        "SaslAuthenticate: 58 Cannot change principals during re-authentication from User.worker: User.limited",
        NOT_SERVED,
    ],
    "again, by another mechanism": [SHAKEN, FOR_A_SECOND, SHAKEN, "SaslAuthenticate: closed", CLOSED],
    "again, by a mechanism that is not enabled": [SHAKEN, FOR_A_SECOND, "SaslHandshake: closed", CLOSED],
    "again, Metadata instead of a token": [SHAKEN, FOR_A_SECOND, SHAKEN, "Metadata: 34", CLOSED],
    "again, twice in a second": [
        SHAKEN,
        FOR_A_SECOND,
        SHAKEN,
        FOR_A_SECOND,
        "SaslHandshake: 34 of 0 mechanisms",
        SERVED,
    ],
    "again, in bare tokens": [SHAKEN, FOR_A_SECOND, SHAKEN, "token: nothing", SERVED],
    "SaslAuthenticate within a limited session": [
        SHAKEN,
        FOR_A_SECOND,
        "SaslAuthenticate: 34 SaslAuthenticate request received after successful authentication",
        SERVED,
    ],
    "a session that is over, Metadata": [SHAKEN, FOR_A_SECOND, NOT_SERVED],
    "a session that is over, ApiVersions": [SHAKEN, FOR_A_SECOND, "ApiVersions: closed"],
    "a session that is over, a new login": [SHAKEN, FOR_A_SECOND, SHAKEN, FOR_A_SECOND, SERVED],
    "a session that is over, in silence": [SHAKEN, FOR_A_SECOND, "open"],
}


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
        [SHAKEN, FAILED.format("OAUTHBEARER"), NOT_SERVED],
        "Kafka means to answer this, but the sentence that it builds for its log raises, and so it closes",
    ),
}
