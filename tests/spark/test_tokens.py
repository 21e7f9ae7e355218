"""The sink logs in with the tokens of a function that an option names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator, Listener, Sasl
from dualwrite.errors import AuthenticationError
from tests.apache_kafka.secured import unsecured_token
from tests.spark.applications import ApplicationWorld
from tests.support.topics import read_topic


def token() -> str:
    return unsecured_token("spark")


def no_token() -> str:
    return "not a token"


def options(provider: str) -> dict[str, Any]:
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauth.token.provider": f"{__name__}:{provider}",
    }


def test_a_batch_is_written_with_tokens(tmp_path: Path) -> None:
    listeners = [Listener("OPEN"), Listener("TOKENS", sasl=Sasl(mechanisms=["OAUTHBEARER"]))]
    with Emulator(listeners=listeners, topics={"t": 1}) as emulator:
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
        world = ApplicationWorld(engine, emulator.bootstrap("TOKENS"), "t")
        world.write("s", 0, [["a"], ["b"]], **options("token"))
        assert sorted(value for _, value in read_topic(emulator.bootstrap("OPEN"), "t")) == ["a", "b"]
        with pytest.raises(AuthenticationError):
            world.write("other", 0, [["c"]], **options("no_token"))
        engine.dispose()
