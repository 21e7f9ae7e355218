"""The decisions against a model, in any order; replay of the records gives the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dualwrite.broker_emulator.schema_registry import decisions, errors
from dualwrite.broker_emulator.schema_registry.decisions import Decision, Proposed
from dualwrite.broker_emulator.schema_registry.errors import RegistryError
from dualwrite.broker_emulator.schema_registry.schemas import AVRO, Schema
from dualwrite.broker_emulator.schema_registry.state import RegistryRecord, RegistryState, decoded
from tests.support.proof_only import examples

INT, LONG, TEXT = (Schema(AVRO, f'"{kind}"') for kind in ("int", "long", "string"))
READABLE = {(INT, INT), (LONG, LONG), (TEXT, TEXT), (LONG, INT)}
SUBJECTS = st.sampled_from(["a", "b"])
SCHEMAS = st.sampled_from([INT, LONG, TEXT])
LEVELS = st.sampled_from(["NONE", "BACKWARD", "FORWARD_TRANSITIVE", "FULL"])


def is_allowed(level: str, new: Schema, before: Sequence[Schema]) -> bool:
    compared = before if "TRANSITIVE" in level else before[-1:]
    backward = level == "NONE" or "FORWARD" in level or all((new, old) in READABLE for old in compared)
    forward = level == "NONE" or "BACKWARD" in level or all((old, new) in READABLE for old in compared)
    return backward and forward


class RegistryModel(RuleBasedStateMachine):
    """The model: by subject, the schema and the deletion of each version that there is."""

    @initialize()
    def begin(self) -> None:
        self.state = RegistryState()
        self.written: list[RegistryRecord] = []
        self.subjects: dict[str, dict[int, tuple[Schema, bool]]] = {}
        self.levels: dict[str | None, str] = {}
        self.read_only = False

    def decide(self, decide: Callable[[], Decision]) -> Any:
        """Return the body, or the code of the error."""
        try:
            decision = decide()
        except RegistryError as error:
            return error.code
        for record in decision.records:
            self.written.append(record)
            self.state.apply(record)
        return decision.body

    def living(self, subject: str) -> list[Schema]:
        known = self.subjects.get(subject, {})
        return [known[number][0] for number in sorted(known) if not known[number][1]]

    @rule(subject=SUBJECTS, schema=SCHEMAS)
    def register(self, subject: str, schema: Schema) -> None:
        body = self.decide(lambda: decisions.register(self.state, subject, Proposed(schema), normalize=False))
        level = self.levels.get(subject) or self.levels.get(None, "BACKWARD")
        living = self.living(subject)
        if self.read_only:
            assert body == errors.NOT_PERMITTED
        elif schema in living:
            assert body["id"] == self.state.ids[schema]
        elif not is_allowed(level, schema, living):
            assert body == errors.INCOMPATIBLE_SCHEMA
        else:
            number = 1 + max(self.subjects.get(subject, {}), default=0)
            assert body["version"] == number
            self.subjects.setdefault(subject, {})[number] = schema, False

    @rule(subject=SUBJECTS, permanent=st.booleans())
    def delete_subject(self, subject: str, permanent: bool) -> None:
        body = self.decide(lambda: decisions.delete_subject(self.state, subject, permanent=permanent))
        known, living = self.subjects.get(subject, {}), self.living(subject)
        if self.read_only:
            assert body == errors.NOT_PERMITTED
        elif not known:
            assert body == errors.SUBJECT_NOT_FOUND
        elif permanent and living:
            assert body == errors.SUBJECT_NOT_SOFT_DELETED
        elif not permanent and not living:
            assert body == errors.SUBJECT_SOFT_DELETED
        elif permanent:
            assert body == sorted(known)
            del self.subjects[subject]
        else:
            assert body == sorted(number for number, (_, is_deleted) in known.items() if not is_deleted)
            self.subjects[subject] = {number: (schema, True) for number, (schema, _) in known.items()}
            self.levels.pop(subject, None)

    @rule(subject=SUBJECTS, number=st.integers(1, 3), permanent=st.booleans())
    def delete_version(self, subject: str, number: int, permanent: bool) -> None:
        body = self.decide(lambda: decisions.delete_version(self.state, subject, str(number), permanent=permanent))
        known = self.subjects.get(subject, {})
        if self.read_only:
            assert body == errors.NOT_PERMITTED
        elif not known:
            assert body == errors.SUBJECT_NOT_FOUND
        elif number not in known:
            assert body == errors.VERSION_NOT_FOUND
        elif permanent and not known[number][1]:
            assert body == errors.VERSION_NOT_SOFT_DELETED
        elif not permanent and known[number][1]:
            assert body == errors.VERSION_SOFT_DELETED
        elif permanent:
            assert body == number
            del known[number]
            if not known:
                del self.subjects[subject]
        else:
            assert body == number
            known[number] = known[number][0], True

    @rule(subject=st.one_of(st.none(), SUBJECTS), level=LEVELS)
    def set_level(self, subject: str | None, level: str) -> None:
        assert self.decide(lambda: decisions.set_level(subject, level)) == {"compatibility": level}
        self.levels[subject] = level

    @rule(read_only=st.booleans())
    def set_mode(self, read_only: bool) -> None:
        mode = "READONLY" if read_only else "READWRITE"
        body = self.decide(lambda: decisions.set_mode(self.state, None, mode, force=False))
        assert body == {"mode": mode}
        self.read_only = read_only

    @invariant()
    def the_state_is_the_models(self) -> None:
        versions = {
            subject: {number: (version.schema, version.is_deleted) for number, version in known.items()}
            for subject, known in self.state.subjects.items()
        }
        assert versions == self.subjects
        ids = {
            version.schema: version.schema_id for known in self.state.subjects.values() for version in known.values()
        }
        assert ids == self.state.ids
        assert len(set(ids.values())) == len(ids)
        assert {schema_id: schema for schema, schema_id in ids.items()} == self.state.schemas

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        replayed = RegistryState()
        for record in self.written:
            key, value = record.encoded()
            replayed.apply(decoded(key, value))
        assert replayed == self.state


RegistryModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestRegistryModel = RegistryModel.TestCase


# ---- outside the model: references and import --------------------------------------------------------------------


def make(state: RegistryState, decision: Decision) -> Any:
    for record in decision.records:
        state.apply(record)
    return decision.body


def put(state: RegistryState, subject: str, schema: Schema, **more: Any) -> Any:
    return make(state, decisions.register(state, subject, Proposed(schema, **more), normalize=False))


def test_import_keeps_ids_and_versions() -> None:
    state = RegistryState()
    with pytest.raises(RegistryError, match="not in import mode"):
        put(state, "a", INT, schema_id=7)
    make(state, decisions.set_mode(state, "a", "IMPORT", force=False))
    assert put(state, "a", INT, schema_id=7, version=3)["id"] == 7
    assert put(state, "a", TEXT, schema_id=9, version=5)["version"] == 5  # compatibility is not asked for
    with pytest.raises(RegistryError, match="Overwrite new schema with id 7 is not permitted"):
        put(state, "a", LONG, schema_id=7)
    with pytest.raises(RegistryError, match="each schema needs its id"):
        put(state, "a", LONG)
    make(state, decisions.set_mode(state, "a", "READWRITE", force=False))
    with pytest.raises(RegistryError, match="Cannot import since found existing subjects"):
        decisions.set_mode(state, "a", "IMPORT", force=False)
    assert put(state, "b", LONG)["id"] == 10


@pytest.mark.parametrize("subject", ["__GLOBAL", "a\n", ":.context:a", "a" * 501])
def test_invalid_subject_names_are_refused(subject: str) -> None:
    with pytest.raises(RegistryError) as caught:
        put(RegistryState(), subject, INT)
    assert caught.value.code == errors.INVALID_SUBJECT


def test_the_registry_can_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RegistryState()
    monkeypatch.setattr(decisions, "MAX_VERSIONS", 1)
    put(state, "a", INT)
    with pytest.raises(RegistryError, match="the registry is full") as caught:
        put(state, "b", INT)
    assert caught.value.code == errors.TOO_LARGE
    assert put(state, "a", INT)["version"] == 1
