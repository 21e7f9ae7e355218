"""One of the two brokers: plays steps on it and learns the ids that later steps refer to."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from dualwrite.broker_emulator.api.registry import APIS
from tests.differential.decoding import decode_response
from tests.differential.requests import fields_of, pair_of, sequence_of
from tests.differential.steps import TOPICS, Step, Versions
from tests.differential.symbols import Symbols
from tests.emulator.api.raw_client import KEYS, TIMEOUT_S, RawClient, milliseconds
from tests.interop.wire import GROUP, Wire, wait_until

Answer = Any
"""A comparable response, or a text with the reason why there is none."""

_PATIENCE_S: Final = 10.0
_PATIENCE_WITH_GROUPS_S: Final = 0.7
"""A response that depends on other members is not awaited for longer."""
_BLOCKING: Final = frozenset({"join_group", "sync_group"})
_ENDING: Final = frozenset({"init_producer_id", "end_txn"})
_SETTLED_WITHIN_S: Final = 10.0
_RETRIABLE: Final = frozenset({3, 5, 6, 14, 15, 16, 51})
NO_ANSWER: Final = "no answer"


class Side:
    """A connection to one broker, and the symbols of the sequence that is played."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        self.name = name
        self._address = bootstrap_servers
        self.client = RawClient(bootstrap_servers, "differential")
        self.symbols = Symbols("", {})
        with Wire(bootstrap_servers) as wire:
            wire.wait_for_coordinator("any")
            wire.wait_for_coordinator("any", GROUP)
            wire.init_ok(None)  # the producer id 0 also means none in some responses

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def versions(self) -> Versions:
        """Return the oldest and newest version of each API that it serves."""
        software = {"client_software_name": "differential", "client_software_version": "1"}
        names = {key: api for api, key in KEYS.items()}
        served = self.client.call("api_versions", 3, **software).api_keys
        return {
            names[row.api_key]: (max(row.min_version, APIS[row.api_key].min_version), row.max_version)
            for row in served
            if row.api_key in names
        }

    # topics

    def create_topics(self, names: Sequence[str]) -> dict[str, dict[str, tuple[str, UUID]]]:
        """Create the topics of sequences with these names, and return them by the sequence and its letters."""
        fields = {"replication_factor": 1, "assignments": (), "configs": ()}
        topics = tuple(
            {"name": f"{name}-{letter}", "num_partitions": count, **fields}
            for name in names
            for letter, count in TOPICS.items()
        )
        answer = self.client.call("create_topics", 7, topics=topics, timeout=milliseconds(20_000), validate_only=False)
        ids = {topic.name: topic.topic_id for topic in answer.topics}
        assert all(topic.error_code == 0 for topic in answer.topics), answer
        wait_until(lambda: self._are_led(names))
        return {name: {letter: (f"{name}-{letter}", ids[f"{name}-{letter}"]) for letter in TOPICS} for name in names}

    def _are_led(self, names: Sequence[str]) -> bool:
        end = {"current_leader_epoch": -1, "timestamp": -1}
        topics = tuple(
            {
                "name": f"{name}-{letter}",
                "partitions": tuple({"partition_index": index, **end} for index in range(count)),
            }
            for name in names
            for letter, count in TOPICS.items()
        )
        answer = self.client.call("list_offsets", 5, replica_id=-1, isolation_level=0, topics=topics)
        return not any(row.error_code for topic in answer.topics for row in topic.partitions)

    def delete_topics(self, names: Sequence[str]) -> None:
        topics = tuple(f"{name}-{letter}" for name in names for letter in TOPICS)
        self.client.call("delete_topics", 5, topic_names=topics, timeout=milliseconds(20_000))

    # steps

    def begin(self, name: str, topics: Mapping[str, tuple[str, UUID]]) -> None:
        """Forget the last sequence."""
        self.symbols = Symbols(name, topics)

    def play(self, step: Step) -> Answer:
        """Send a step's request and return its response."""
        try:
            values = fields_of(step, self.symbols)
            self.client.be_patient_for(_PATIENCE_WITH_GROUPS_S if step.api in _BLOCKING else _PATIENCE_S)
            response = self._call(step.api, step.version, **values)
        except TimeoutError:
            self._reconnect()
            return NO_ANSWER
        except ConnectionError:
            self._reconnect()
            return "closed"
        except (ValueError, IndexError, struct.error) as error:
            self._reconnect()
            return f"not decoded: {error!r}"
        finally:
            self.client.be_patient_for(TIMEOUT_S)
        self._learn(step, response)
        if step.api in _ENDING:
            self._settle()
        return self.symbols.comparable(response)

    def _call(self, api: str, version: int, **values: Any) -> Any:
        self.client.send(api, version, **values)
        return decode_response(api, version, self.client.receive_frame())

    def _reconnect(self) -> None:
        self.client.__exit__(None, None, None)
        self.client = RawClient(self._address, "differential")

    def _learn(self, step: Step, response: Any) -> None:
        values, symbols = step.values, self.symbols
        match step.api:
            case "init_producer_id" if response.error_code == 0:
                symbols.learn_pair(values["id"], response.producer_id, response.producer_epoch)
            case "end_txn" if response.error_code == 0 and step.version >= 5:
                symbols.learn_pair(values["id"], response.producer_id, response.producer_epoch)
            case "produce" if response.responses and response.responses[0].partition_responses[0].error_code == 0:
                sequence = sequence_of(values, symbols)
                if sequence >= 0:
                    key = (pair_of(values, symbols), values["partition"])
                    symbols.sequences[key] = max(symbols.sequences.get(key, 0), sequence + values["count"])
            case "join_group" if response.error_code in (0, 79):
                symbols.members[values["group"]] = (response.member_id, max(response.generation_id, -1))
            case "consumer_group_heartbeat" if response.error_code == 0:
                symbols.epochs[values["group"], values["member"]] = response.member_epoch

    def _settle(self) -> None:
        """Wait until no transaction of the sequence is between its decision and its end."""
        ids = tuple(self.symbols.id(letter) for letter in ("A", "B"))
        deadline_s = time.monotonic() + _SETTLED_WITHIN_S
        while time.monotonic() < deadline_s:
            answer = self._call("describe_transactions", 0, transactional_ids=ids)
            if not any(state.transaction_state.startswith("Prepare") for state in answer.transaction_states):
                return
            time.sleep(0.002)


def is_retriable(answer: Answer) -> bool:
    """Return whether a response has an error that passes."""
    return any(code in _RETRIABLE for code in _codes(answer))


def is_refusal(answer: Answer) -> bool:
    """Return whether a response has an error, or is missing."""
    return isinstance(answer, str) or any(code != 0 for code in _codes(answer))


def _codes(answer: Answer) -> Iterator[int]:
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("error_code"):
                yield value
            yield from _codes(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from _codes(each)
