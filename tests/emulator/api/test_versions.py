"""Every API in every version: it is advertised, it has a response, and it can refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import api_key_map

from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, Profile
from dualwrite.broker_emulator.api import registry
from dualwrite.broker_emulator.api.registry import APIS, Api
from dualwrite.broker_emulator.messages.schemas import versions_of
from tests.emulator.api.raw_client import ALL_VERSIONS, KEYS, RawClient, request_type
from tests.emulator.hostile.requests import filled, frame


def error_codes(message: Any) -> list[int]:
    """Return every error code in a response."""
    found = []
    for name in type(message).__dataclass_fields__:
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code"):
            found.append(int(value))
        for item in value if isinstance(value, tuple) else (value,):
            if hasattr(type(item), "__dataclass_fields__"):
                found += error_codes(item)
    return found


@pytest.mark.parametrize(("api", "version"), ALL_VERSIONS)
def test_every_version_answers_and_can_refuse(emulator: Emulator, client: RawClient, api: str, version: int) -> None:
    """Of one element of each kind; of no transactional id, because kio cannot read a start of -1."""
    sent = frame(
        KEYS[api], version, 1, filled(request_type(api, version), lambda _: int(api != "describe_transactions"))
    )
    client.send_bytes(sent)
    client.receive(api, version, 1)
    emulator.faults.add(Fault(api=api, action=Error(41)))
    client.send_bytes(sent)
    refused = error_codes(client.receive(api, version, 1))
    assert set(refused) <= {0, 41}, refused
    assert 41 in refused or api == "describe_transactions"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.schema_name)
def test_the_whole_range_of_the_codec_is_served_and_the_docstring_says_so(api: Api) -> None:
    offered = versions_of(api.schema_name)
    assert (api.min_version, api.max_version) == (min(offered), max(offered))
    assert api_key_map[api.key] == api.schema_name
    assert KEYS[api.schema_name] == api.key
    versions = f"{api.min_version}-{api.max_version}" if api.max_version else "0"
    documentation = api.functions.handle.__doc__ or ""
    header = re.fullmatch(r"Serve (\w+) \(key (\d+)\), versions? ([\d-]+)\.", documentation.split("\n")[0])
    assert header is not None, documentation
    assert header.groups() == (api.schema_name.title().replace("_", ""), str(api.key), versions)


def test_every_handler_is_served() -> None:
    files = {path.stem: path.read_text() for path in Path(registry.__file__).parent.glob("*.py")}
    handlers = {(file, name) for file, text in files.items() for name in re.findall(r"def handle_(\w+)", text)}
    assert handlers == {(file, APIS[key].schema_name) for file, keys in registry.FILES.items() for key in keys}
    assert sorted(key for keys in registry.FILES.values() for key in keys) == sorted(APIS)


def advertised(client: RawClient) -> dict[str, tuple[int, int]]:
    response = client.call("api_versions", 4, **SOFTWARE)
    return {api_key_map[row.api_key]: (row.min_version, row.max_version) for row in response.api_keys}


SOFTWARE = {"client_software_name": "raw", "client_software_version": "1.0"}
FEATURES = [("group.version", 0, 1), ("share.version", 0, 1), ("transaction.version", 0, 2)]
FINALIZED = [("group.version", 1), ("share.version", 1), ("transaction.version", 2)]


@pytest.mark.parametrize(
    ("config", "version", "supported", "finalized"),
    [
        (BrokerConfig(), 3, [], FINALIZED),
        (BrokerConfig(), 4, FEATURES, FINALIZED),
        (BrokerConfig(transaction_version=1), 4, FEATURES, [*FINALIZED[:2], ("transaction.version", 1)]),
        (BrokerConfig(transaction_version=0, group_version=0, share_version=0), 4, FEATURES, []),
        (BrokerConfig(profile=Profile.KAFKA_3_9), 4, [], []),
    ],
)
def test_features(config: BrokerConfig, version: int, supported: list[Any], finalized: list[Any]) -> None:
    with Emulator(config=config) as emulator, RawClient(emulator.bootstrap_servers) as client:
        response = client.call("api_versions", version, **SOFTWARE)
    assert [(row.name, row.min_version, row.max_version) for row in response.supported_features] == supported
    assert [(row.name, row.max_version_level) for row in response.finalized_features] == finalized
