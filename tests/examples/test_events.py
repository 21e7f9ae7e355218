"""Inputs: the events that are read from them, and the errors for unreadable ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.flights.errors import InputError
from examples.flights.events import Event, read_event_file, read_events, write_event_file


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flights_are_numbered_and_keyed_by_aeroplane() -> None:
    events = list(read_events(None, key=None, limit=3))
    assert [(event.number, event.key) for event in events] == [(0, "N14228"), (1, "N24211"), (2, "N619AA")]
    value = json.loads(events[0].value)
    assert value["event"] == 0
    assert value["data"]["carrier"] == "UA"
    assert value["data"]["dep_time"] == 517


@pytest.mark.parametrize(
    ("name", "text"),
    [("mine.jsonl", '{"id": 7, "name": "Zoë"}\n\n{"id": 8, "name": null}\n'), ("MINE.CSV", "id,name\n7,Zoë\n\n8,\n")],
)
def test_a_file_is_keyed_by_its_first_field(tmp_path: Path, name: str, text: str) -> None:
    events = list(read_events(write(tmp_path / name, text), key=None, limit=None))
    assert [(event.number, event.key) for event in events] == [(0, "7"), (1, "8")]
    assert json.loads(events[0].value)["data"]["name"] == "Zoë"


def test_a_file_is_keyed_by_the_field_that_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", "id,name\n007,x\n8,\n")
    assert [event.key for event in read_events(path, key="name", limit=None)] == ["x", ""]


def test_csv_values_are_not_interpreted_and_may_span_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", 'id,text\n007,"two\nlines"\n')
    (event,) = read_events(path, key=None, limit=None)
    assert json.loads(event.value)["data"] == {"id": "007", "text": "two\nlines"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.jsonl", '{"id": 1}\n{"id": \n', "line 2: not JSON"),
        ("bad.jsonl", '{"id": 1}\n[1]\n', "line 2: not a JSON object"),
        ("bad.jsonl", '{"id": 1}\n\n{"it": 2}\n', "line 3: no field 'id' for the key; there are it"),
        ("bad.jsonl", '{"id": "\\u0000"}\n', "line 1: a NUL character"),
        ("bad.jsonl", '{"id": "\\ud800"}\n', "line 1: half a surrogate pair"),
        ("bad.csv", "id,name\n1,x\n2\n", "line 3: 1 fields where the header has 2"),
        ("bad.csv", "id,id\n1,2\n", "line 1: the header names id more than once"),
        ("bad.csv", 'id\n"1\n', "not CSV"),
        ("bad.parquet", "x", "must end in .jsonl"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        list(read_events(path, key="id" if "it" in text else None, limit=None))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", ""), ("a.csv", ""), ("a.csv", "id,name\n")])
def test_an_empty_input_is_refused(tmp_path: Path, name: str, text: str) -> None:
    events = read_events(write(tmp_path / name, text), key=None, limit=None)
    with pytest.raises(InputError, match="no events"):
        write_event_file(events, tmp_path / "events.jsonl")


def test_workers_find_the_events_again_from_any_number_on(tmp_path: Path) -> None:
    events = [Event(number, f"key {number}", '{"text":"Zoë\u2028"}') for number in range(7)]
    path = tmp_path / "events.jsonl"
    assert write_event_file(iter(events), path) == 7
    assert list(read_event_file(path, start=0, group_size=3)) == [events[:3], events[3:6], events[6:]]
    assert list(read_event_file(path, start=6, group_size=3)) == [events[6:]]
    assert list(read_event_file(path, start=7, group_size=3)) == []
