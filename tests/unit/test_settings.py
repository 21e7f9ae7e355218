"""The typed settings are the ones checked at run time, and every value of a type is accepted there."""

from __future__ import annotations

import inspect
from dataclasses import fields
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_overloads, get_type_hints

import pytest

import dualwrite
from dualwrite import config, settings
from dualwrite.config import AdminConfig, ProducerConfig
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.core.settings import OF_POOLS, KafkaSettings, WritingSettings
from dualwrite.settings import (
    AdminSettings,
    ProducerSettings,
    RecoverySettings,
    WriterPoolSettings,
    WriterSettings,
)

OF_THE_WRITER: Final = {"transactional_id", "transaction_two_phase_commit_enable", "accept_bounded_guarantee"}
"""Settings that the writer itself decides."""


def names(of: type) -> set[str]:
    return set(get_type_hints(of))


def test_the_types_have_the_settings_of_the_table() -> None:
    assert names(ProducerSettings) == config._PARSERS.keys()
    of_the_producer = names(ProducerSettings) - OF_THE_WRITER
    assert names(WriterPoolSettings) == of_the_producer | {field.name for field in fields(WritingSettings)}
    assert names(WriterSettings) == names(WriterPoolSettings) - set(OF_POOLS)
    assert names(AdminSettings) == config._ADMIN_PARSERS.keys()
    assert names(RecoverySettings) == names(AdminSettings) - {"default_api_timeout_ms"} | config.PUBLISHING


def test_only_the_servers_have_to_be_named_where_there_is_no_mapping() -> None:
    for of in (WriterSettings, WriterPoolSettings, RecoverySettings):
        assert of.__required_keys__ == {"bootstrap_servers"}
    assert not ProducerSettings.__required_keys__
    assert not AdminSettings.__required_keys__


def settings_of(name: str) -> list[str]:
    """The types of the settings that a public class takes, of each overload."""
    made = getattr(dualwrite, name)
    declared = get_overloads(made.__init__) or [made]
    return [str(list(inspect.signature(each).parameters.values())[-1].annotation) for each in declared]


def test_every_face_takes_the_types() -> None:
    taken = {
        name: settings_of(name)
        for name in dualwrite.__all__
        if name.endswith(("Writer", "Producer", "Admin", "Service"))
    }
    assert [text for each in taken.values() for text in each if not text.startswith("Unpack[")] == []
    writers = {name: texts for name, texts in taken.items() if name.endswith("Writer")}
    assert len(writers) == 5
    assert all(texts == ["Unpack[WriterSettings]", "Unpack[WriterPoolSettings]"] for texts in writers.values())


PLAIN: Final[dict[Any, Any]] = {int: 1, bool: True, str: "text", type(None): None}


def samples(hint: Any) -> list[Any]:
    """Values of a type; none of callables and other objects, which are tested elsewhere."""
    if hint in PLAIN:
        return [PLAIN[hint]]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return [value for each in get_args(hint) for value in samples(each)]
    return []


TEXTS: Final = {"security_protocol": "SSL", "sasl_mechanism": "PLAIN", "bootstrap_servers": "h:1"}


@pytest.mark.parametrize("name", sorted(config._PARSERS))
def test_values_allowed_by_the_type_are_accepted(name: str) -> None:
    for value in samples(get_type_hints(ProducerSettings)[name]):
        parsed = TEXTS.get(name, value) if value == "text" else value
        config._PARSERS[name](name, parsed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("kafka://h:9092", "takes host:port, and no URL: write 'h:9092' without 'kafka://'"),
        ("a:1,SASL_SSL://b:2", "write 'b:2' without 'SASL_SSL://'"),
        ("kafka://user:secret@h:9092/topic", "write 'h:9092' without"),
    ],
)
def test_a_url_is_no_address(given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        ProducerConfig.parse(None, {"bootstrap_servers": given})
    assert "security_protocol" in str(refused.value)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers takes host:port.*security\.protocol"):
        AdminConfig.parse({"bootstrap.servers": given}, {})


def test_a_refusal_names_the_keyword_that_was_passed() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is missing"):
        dualwrite.Producer(acks="all")
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        dualwrite.Producer({"acks": "all"})
    with (
        pytest.raises(IllegalStateError, match="no transactional_id"),
        dualwrite.Producer(bootstrap_servers="h:1") as made,
    ):
        made.begin_transaction()
    with pytest.raises(ConfigError, match="enable_idempotence=true"):
        dualwrite.Producer(bootstrap_servers="h:1", acks=1)


def test_long_values_are_cut_in_refusals() -> None:
    long = "order-" * 1000
    for refused in (
        lambda: KafkaSettings(long, {"bootstrap_servers": "h:1"}),
        lambda: ProducerConfig.parse(None, {"bootstrap_servers": long}),
        lambda: ProducerConfig.parse(None, {long: 1, "bootstrap_servers": "h:1"}),
        lambda: ProducerConfig.parse(None, {"linger_ms": [7] * 1000, "bootstrap_servers": "h:1"}),
    ):
        with pytest.raises(ConfigError, match=r"\.\.\. \(\d+ characters\)") as error:
            refused()
        assert len(str(error.value)) < 1000


def test_the_types_are_public() -> None:
    assert {name for name in settings.__all__ if name in dualwrite.__all__} == {
        "AdminSettings",
        "ProducerSettings",
        "WriterPoolSettings",
        "WriterSettings",
    }
