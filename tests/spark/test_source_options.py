"""The source's options: Spark's names in any case, and a sentence for each invalid value."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import KafkaError

from spark_sink.errors import SinkOptionError
from spark_sink.reading import librdkafka
from spark_sink.reading.connections import library_of
from spark_sink.reading.kafka_settings import (
    api_timeout_ms,
    connection_of_kafka_python,
    fetching_of_kafka_python,
    for_librdkafka,
)
from spark_sink.reading.offsets import EARLIEST, LATEST, Partition
from spark_sink.reading.options import (
    Bound,
    Library,
    OnNoTimestamp,
    SourceOptions,
    check_for_batch,
    check_for_stream,
    parse,
)

LEAST = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}


def parsed(**more: str) -> SourceOptions:
    return parse({**LEAST, **{name.replace("__", "."): value for name, value in more.items()}})


def test_the_least() -> None:
    options = parse(LEAST)
    assert options.topics.subscribe == ("orders",)
    assert (options.starting, options.ending) == (None, None)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.kafka["isolation.level"] == "read_committed"


def test_names_come_in_lower_case() -> None:
    written = {
        **LEAST,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
        "minPartitions": "4",
        "maxRecordsPerPartition": "50",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "startingOffsetsByTimestampStrategy": "latest",
        "kafkaConsumer.pollTimeoutMs": "500",
        "groupIdPrefix": "mine",
        "consumer.library": "kafka-python",
    }
    options = parse({name.lower(): value for name, value in written.items()})
    assert options == parse(written)
    assert options.starting == Bound(everywhere=EARLIEST)
    assert (options.max_offsets_per_trigger, options.min_partitions, options.max_records_per_partition) == (100, 4, 50)
    assert (options.fail_on_data_loss, options.include_headers) == (False, True)
    assert options.on_no_timestamp is OnNoTimestamp.LATEST
    assert (options.poll_timeout_ms, options.group_prefix, options.library) == (500, "mine", Library.KAFKA_PYTHON)
    assert pickle.loads(pickle.dumps(options)) == options


def test_which_topics() -> None:
    assert parse({**LEAST, "subscribe": "a, b"}).topics.subscribe == ("a", "b")
    bare = {"kafka.bootstrap.servers": "broker:9092"}
    assert parse({**bare, "subscribePattern": "orders-.*"}).topics.pattern == "orders-.*"
    assigned = parse({**bare, "assign": '{"b": [1], "a": [2, 0]}'}).topics.assign
    assert assigned == (Partition("a", 0), Partition("a", 2), Partition("b", 1))


def test_where_to_start_and_to_end() -> None:
    written = '{"orders": {"0": 12, "1": -2, "2": -1}}'
    offsets = {Partition("orders", 0): 12, Partition("orders", 1): EARLIEST, Partition("orders", 2): LATEST}
    assert parsed(startingOffsets=written).starting == Bound(offsets=offsets)
    assert parsed(endingOffsets="LATEST").ending == Bound(everywhere=LATEST)
    assert parsed(startingTimestamp="1000", startingOffsets="earliest").starting == Bound(timestamp_ms=1000)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"subscribe": " "}, "the option subscribe is empty"),
        ({"assign": '{"a": [0]}'}, "exactly one of the options subscribe, subscribePattern, assign"),
        ({"startingOffset": "earliest"}, "unknown option startingOffset; did you mean startingOffsets?"),
        ({"foo": "1"}, "unknown option foo; the options are subscribe, "),
        ({"kafka.bootstrap.server": "x:1"}, "unknown setting 'bootstrap.server'; did you mean bootstrap.servers"),
        ({"kafka.group.instance.id": "x"}, "the source joins no group"),
        ({"kafka.auto.offset.reset": "earliest"}, "a new query starts at startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "offsets are kept in the checkpoint"),
        ({"kafka.value.deserializer": "x"}, "the column value is binary"),
        ({"kafka.isolation.level": "read"}, "'read' is not read_committed or read_uncommitted"),
        ({"kafka.fetch.max.bytes": "many"}, "kafka.fetch.max.bytes: 'many' is not a whole number"),
        ({"kafka.check.crcs": "maybe"}, "kafka.check.crcs: 'maybe' is not true or false"),
        ({"startingOffsets": "first"}, "'first' is not earliest, latest or JSON like"),
        ({"startingOffsets": '{"orders": [1]}'}, "the topic orders has no mapping of partitions"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 of orders-0 is not an offset"),
        ({"startingOffsets": '{"orders": {"x": 3}}'}, "topic orders: 'x' is not a partition number"),
        ({"startingTimestamp": "yesterday"}, "'yesterday' is not a time in milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": "{}"}, "startingTimestamp applies to all partitions"),
        ({"minOffsetsPerTrigger": "5"}, "Spark does not let a source in Python delay a batch"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is not a whole number from 1"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is not true or false"),
        ({"consumer.library": "aiokafka"}, "'aiokafka' is not one of auto, confluent-kafka, kafka-python"),
        ({"path": "/orders"}, "load.. takes no path"),
        ({"topic": "orders"}, "topic is an option of the sink"),
    ],
)
def test_impossible_options_are_refused(more: dict[str, str], sentence: str) -> None:
    with pytest.raises(SinkOptionError, match=sentence):
        parse({**LEAST, **more})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "a"}, "bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "b:1"}, "exactly one of the options"),
        ({"kafka.bootstrap.servers": "b:1", "subscribePattern": "("}, "is not a regular expression"),
        ({"kafka.bootstrap.servers": "b:1", "assign": "a"}, 'is not JSON like {"topic": '),
        ({"kafka.bootstrap.servers": "b:1", "assign": '{"a": ["x"]}'}, "names no partitions"),
        ({"kafka.bootstrap.servers": "b:1", "assign": "{}"}, "names no partitions"),
    ],
)
def test_missing_or_contradictory_options_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SinkOptionError, match=sentence):
        parse(given)


def test_streams_and_batch_queries_differ() -> None:
    check_for_stream(parsed(startingOffsets="latest"))
    check_for_batch(parsed(startingOffsets="earliest", endingOffsets="latest"))
    with pytest.raises(SinkOptionError, match="endingOffsets and endingTimestamp are for batch queries"):
        check_for_stream(parsed(endingOffsets="latest"))
    with pytest.raises(SinkOptionError, match="has nothing to read"):
        check_for_batch(parsed(startingOffsets="latest"))
    with pytest.raises(SinkOptionError, match="has nothing to read"):
        check_for_batch(parsed(startingOffsets='{"orders": {"0": -1}}'))
    with pytest.raises(SinkOptionError, match="has nothing to read"):
        check_for_batch(parsed(endingOffsets='{"orders": {"0": -2}}'))
    with pytest.raises(SinkOptionError, match="maxOffsetsPerTrigger is for streams"):
        check_for_batch(parsed(maxOffsetsPerTrigger="5"))


SECRET = "correct-horse"
SASL = {
    "kafka__security__protocol": "SASL_PLAINTEXT",
    "kafka__sasl__mechanism": "SCRAM-SHA-512",
    "kafka__sasl__jaas__config": (
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'
    ),
}


def test_secrets_are_in_no_repr_and_no_error() -> None:
    assert SECRET not in repr(parsed(**SASL))
    with pytest.raises(SinkOptionError) as refused:
        parsed(**SASL, kafka__sasl__mechanism_="PLAIN")
    assert SECRET not in str(refused.value)


def test_the_settings_of_librdkafka() -> None:
    settings = parsed(
        **SASL,
        kafka__request__timeout__ms="5000",
        kafka__fetch__max__wait__ms="50",
        kafka__default__api__timeout__ms="7000",
    ).kafka
    told = for_librdkafka(settings)
    assert told == {
        "bootstrap.servers": "broker:9092",
        "isolation.level": "read_committed",
        "check.crcs": "true",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "socket.timeout.ms": "5000",
        "fetch.wait.max.ms": "50",
    }
    assert api_timeout_ms(settings) == 7000


def test_one_file_may_have_certificate_and_key() -> None:
    settings = parsed(
        kafka__security__protocol="SSL",
        kafka__ssl__keystore__location="/client.pem",
        kafka__ssl__keystore__type="PEM",
        kafka__ssl__endpoint__identification__algorithm="",
    ).kafka
    told = for_librdkafka(settings)
    assert told["ssl.certificate.location"] == told["ssl.key.location"] == "/client.pem"
    assert told["ssl.endpoint.identification.algorithm"] == "none"
    other = connection_of_kafka_python(settings)
    assert (other["ssl_certfile"], other["ssl_check_hostname"]) == ("/client.pem", False)


def test_the_settings_of_kafka_python() -> None:
    settings = parsed(**SASL, kafka__fetch__max__bytes="1000", kafka__client__rack="b", kafka__group__id="g").kafka
    told = connection_of_kafka_python(settings)
    assert told["bootstrap_servers"] == ["broker:9092"]
    assert (told["security_protocol"], told["sasl_mechanism"]) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    assert (told["sasl_plain_username"], told["sasl_plain_password"]) == ("alice", SECRET)
    assert fetching_of_kafka_python(settings) == {
        "isolation_level": "read_committed",
        "check_crcs": True,
        "fetch_max_bytes": 1000,
        "client_rack": "b",
    }


def token() -> str:
    return "a token"


def test_tokens_are_for_kafka_python() -> None:
    options = parsed(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="OAUTHBEARER",
        kafka__sasl__oauth__token__provider=f"{__name__}:token",
    )
    assert library_of(options) is Library.KAFKA_PYTHON
    assert connection_of_kafka_python(options.kafka)["sasl_oauth_token_provider"].token() == "a token"


def test_the_fast_library_is_taken_where_it_is_installed() -> None:
    assert library_of(parsed()) is Library.CONFLUENT_KAFKA
    assert library_of(parsed(consumer__library="kafka-python")) is Library.KAFKA_PYTHON


@pytest.mark.parametrize(
    "name", ["ALL_BROKERS_DOWN", "AUTO_OFFSET_RESET", "NOENT", "PARTITION_EOF", "RESOLVE", "TIMED_OUT", "TRANSPORT"]
)
def test_the_errors_of_librdkafka_have_its_numbers(name: str) -> None:
    assert getattr(librdkafka, name) == getattr(KafkaError, f"_{name}")
