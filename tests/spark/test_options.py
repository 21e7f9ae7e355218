"""Options are parsed before any transaction, and invalid ones are refused with a sentence."""

from __future__ import annotations

import pickle

import pytest

from spark_sink.errors import SinkOptionError
from spark_sink.lake.place import Catalog, LakePlace
from spark_sink.options import DualMode, OnNewCheckpoint, SinkOptions, StoreOptions, TxnMode, parse, store_url

LEAST = {
    "sinkId": "orders",
    "kafka.bootstrap.servers": "broker:9092",
    "commitStore.url": "postgresql+psycopg://app:hunter2@db/app",
}


def with_(**more: object) -> SinkOptions:
    """Parse the required options and `more`, whose names have underscores for dots."""
    return parse({**LEAST, **{name.replace("_", "."): value for name, value in more.items()}})


def test_the_required_options_are_enough() -> None:
    options = parse(LEAST)
    assert (options.sink_id, options.kafka) == ("orders", {"bootstrap.servers": "broker:9092"})
    assert (options.topic, options.include_headers, options.job_id, options.checkpoint_location) == (
        None,
        False,
        None,
        None,
    )
    assert (options.txn_mode, options.txn_timeout_ms) == (TxnMode.AUTO, 900_000)
    assert (options.on_new_checkpoint, options.dual) == (OnNewCheckpoint.FAIL, None)
    assert options.store.create_tables


def test_names_may_come_in_any_case_as_spark_hands_them_over_in_lower_case() -> None:
    options = parse(
        {
            "sinkid": "orders",
            "KAFKA.Bootstrap.Servers": "broker:9092",
            "kafka.linger.ms": "7",
            "commitstore.urlenv": "STORE_URL",
            "COMMITSTORE.SCHEMA": "sink",
            "commitstore.createtables": "False",
            "includeheaders": "TRUE",
            "txn.timeoutms": "60000",
            "txn.mode": "Resume",
            "onnewcheckpoint": "adopt",
            "dual.table": "app.orders",
            "dual.columns": "id, amount",
            "dual.mode": "upsert",
            "dual.key": "id",
            "commit.parallelism": "3",
            "commit.retries": "0",
            "store.retentionbatches": "9",
            "checkpointlocation": "/data/checkpoint",
            "queryname": "a name for Spark's user interface",
        }
    )
    assert options.kafka == {"bootstrap.servers": "broker:9092", "linger.ms": "7"}
    assert options.store.url is None
    assert (options.store.url_env, options.store.schema, options.store.create_tables) == ("STORE_URL", "sink", False)
    assert options.include_headers
    assert (options.txn_mode, options.txn_timeout_ms) == (TxnMode.RESUME, 60_000)
    assert options.on_new_checkpoint is OnNewCheckpoint.ADOPT
    assert options.dual is not None
    assert (options.dual.table, options.dual.columns) == ("app.orders", ("id", "amount"))
    assert (options.dual.mode, options.dual.key) == (DualMode.UPSERT, ("id",))
    assert (options.commit_parallelism, options.commit_retries, options.retention_batches) == (3, 0, 9)
    assert options.checkpoint_location == "/data/checkpoint"


def test_values_may_be_python_s_where_options_are_a_mapping() -> None:
    options = with_(includeHeaders=True, commit_retries=2)
    assert (options.include_headers, options.commit_retries) == (True, 2)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("topics", "a", "did you mean topic?"),
        ("asyncProgressTrackingEnable", "true", "unknown option asyncProgressTrackingEnable"),
        ("commitStore.uri", "a", "did you mean commitStore.url?"),
        ("colour", "red", "the options are sinkId, topic,"),
        ("kafka.linger.msec", "1", "did you mean kafka.linger.ms?"),
        ("path", "/data", "start() and save() take no path"),
        ("subscribe", "a", "an option of the source"),
        ("asyncProgressTrackingEnabled", "true", "asynchronous progress tracking is refused"),
        ("kafka.bootstrap.servers", "nowhere", "'nowhere' is not host:port"),
        ("sinkId", "my-sink", "letters, digits, dots and underscores"),
        ("sinkId", "s" * 101, "1 to 100 letters"),
        ("sinkId", " ", "is empty"),
        ("includeHeaders", "yes", "'yes' is not true or false"),
        ("commit.parallelism", "0", "a whole number from 1"),
        ("commit.retries", "-1", "a whole number from 0"),
        ("txn.mode", "magic", "not one of auto, kip939, resume"),
        ("onNewCheckpoint", "ask", "not one of fail, adopt"),
        ("dual.mode", "upsert", "dual.mode has no effect without dual.table"),
        ("jobId", "j" * 201, "has 201 characters"),
        ("jobVersion", "1", "jobVersion has no effect without jobId"),
        ("requireDigest", "always", "is not one of false, replay, true"),
        ("commitStore.url", "jdbc:postgresql://db/app", "not a JDBC URL"),
        ("commitStore.url", "db/app", "is not a SQLAlchemy URL"),
        ("commitStore.url", "sqlite://", "in memory"),
        ("commitStore.url", "sqlite:///:memory:", "in memory"),
        ("commitStore.url", "sqlite:///store.db", "absolute path"),
        ("commitStore.urlEnv", "URL", "set either commitStore.url,"),
        ("topic", ["a"], "must be a string, a number or true or false, not a list"),
        ("SINKID", "again", "given twice"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(name: str, value: object, sentence: str) -> None:
    with pytest.raises(SinkOptionError) as refusal:
        parse({**LEAST, name: value})
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("sinkId", "the option sinkId is missing"),
        ("kafka.bootstrap.servers", "bootstrap.servers is missing"),
        ("commitStore.url", "set either commitStore.url,"),
    ],
)
def test_missing_options_are_named(missing: str, sentence: str) -> None:
    with pytest.raises(SinkOptionError) as refusal:
        parse({name: value for name, value in LEAST.items() if name != missing})
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("path", ["/lake/s.db", "C:/lake/s.db", "C:\\lake\\s.db", "file:/lake/s.db?uri=true"])
def test_a_path_of_sqlite_may_be_absolute_in_each_way(path: str) -> None:
    assert parse({**LEAST, "commitStore.url": f"sqlite:///{path}"}).store.url == f"sqlite:///{path}"


def test_a_url_in_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_URL", "sqlite:///store.db")
    store = StoreOptions(url=None, url_env="STORE_URL", schema=None)
    with pytest.raises(SinkOptionError, match=r"commitStore\.urlEnv=STORE_URL: .* absolute path"):
        store_url(store)


def test_a_key_needs_an_upsert_and_columns_differ() -> None:
    with pytest.raises(SinkOptionError, match=r"without dual\.mode=upsert"):
        with_(dual_table="orders", dual_key="id")
    with pytest.raises(SinkOptionError, match="list of distinct names"):
        with_(dual_table="orders", dual_columns="id,id")


def test_an_option_may_be_switched_off_explicitly() -> None:
    assert with_(
        asyncProgressTrackingEnabled="false",
        asyncProgressTrackingCheckpointIntervalMs="9",
        kafka_enable_idempotence="true",
        kafka_acks="all",
    )


def test_secrets_are_in_no_repr() -> None:
    options = with_(kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="PLAIN", kafka_sasl_username="app",
                    kafka_sasl_password="swordfish")  # fmt: skip
    assert "swordfish" not in repr(options)
    assert "hunter2" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "wrong",
    [
        {"commitStore.url": "postgres //app:hunter2@db"},
        {"commitStore.url": "jdbc:postgresql://db/app?password=hunter2"},
        {"kafka.sasl.jaas.config": "com.sun.Krb5LoginModule required password=hunter2;"},
        {"kafka.sasl.password": "hunter2"},
        {"kafka.ssl.key.password": "hunter2"},
        {"kafka.ssl.keystore.key": "hunter2"},
        {"kafka.sasl.pasword": "hunter2"},
        {"kafka.sasl.mechanism": "NONE", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.password": "hunter2"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_secrets_are_in_no_error(wrong: dict[str, str]) -> None:
    with pytest.raises(SinkOptionError) as refusal:
        parse({**LEAST, **wrong})
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__cause__ is None


# ---- Delta tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "directory"),
    [
        ("delta:/lake/orders", "/lake/orders"),
        ("delta:/lake//a/../orders/", "/lake/orders"),
        ("delta:file:///lake/with%20space", "/lake/with space"),
        ("delta:file:/lake/orders", "/lake/orders"),
    ],
)
def test_a_delta_table_is_a_directory(given: str, directory: str) -> None:
    dual = with_(dual_table=given, dual_columns="id").dual
    assert dual is not None
    assert (dual.lake, dual.table, dual.columns) == (LakePlace(directory), given, ("id",))


@pytest.mark.parametrize(
    "given", ["delta:orders", "delta:s3://bucket/orders", "delta:file://host/orders", "delta:hdfs:///orders", "delta:"]
)
def test_other_places_of_delta_tables_are_refused(given: str) -> None:
    with pytest.raises(SinkOptionError, match="is not an absolute path"):
        with_(dual_table=given)


@pytest.mark.parametrize("given", ["delta:/lake/100%25", "delta:file:///lake/100%25"])
def test_a_percent_sign_is_refused(given: str) -> None:
    with pytest.raises(SinkOptionError, match="disagree on a path"):
        with_(dual_table=given)


def test_a_delta_table_is_only_appended_to() -> None:
    with pytest.raises(SinkOptionError, match="appended"):
        with_(dual_table="delta:/lake/orders", dual_mode="upsert", dual_key="id")


# ---- Iceberg tables -----------------------------------------------------------------------------------------


_URL = "postgresql+psycopg://lake@db:5432/iceberg?sslmode=require"


def iceberg(**options: str) -> SinkOptions:
    """Parse options with an Iceberg table."""
    return with_(dual_table="iceberg:shop.eu.orders", **options)


@pytest.mark.parametrize(
    ("options", "catalog"),
    [
        ({"dual_catalog_url": _URL}, Catalog("default", _URL)),
        ({"dual_catalog_url": "sqlite:////lake/c.db", "dual_catalog_name": "x"}, Catalog("x", "sqlite:////lake/c.db")),
        ({"dual_catalog_urlEnv": "LAKE_URL"}, Catalog("default", None, "LAKE_URL")),
    ],
)
def test_an_iceberg_table_is_named_by_its_catalog(options: dict[str, str], catalog: Catalog) -> None:
    dual = iceberg(**options).dual
    assert dual is not None
    assert dual.lake == LakePlace(None, "shop.eu.orders", catalog)
    placed = dual.lake.at("/lake/a b/orders & more/data")
    assert LakePlace.of(placed.location) == placed
    assert placed.location.startswith("iceberg:shop.eu.orders?directory=/lake/a%20b/")


@pytest.mark.parametrize(
    "given", ["iceberg:orders", "iceberg:", "iceberg:shop.", "iceberg:/lake/orders", "iceberg:a..b"]
)
def test_other_names_of_iceberg_tables_are_refused(given: str) -> None:
    with pytest.raises(SinkOptionError, match="not the name of an Iceberg table"):
        with_(dual_table=given, dual_catalog_url=_URL)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs its catalog"),
        ({"dual_catalog_url": _URL, "dual_catalog_urlEnv": "LAKE_URL"}, "needs its catalog"),
        ({"dual_catalog_url": "http://rest:8181"}, "REST, Glue, Hive"),
        ({"dual_catalog_url": "thrift://hive:9083"}, "REST, Glue, Hive"),
        ({"dual_catalog_url": "mysql+pymysql://db/lake"}, "SQLite or PostgreSQL"),
        ({"dual_catalog_url": "jdbc:postgresql://db/lake"}, "not a SQLAlchemy URL"),
        ({"dual_catalog_url": "sqlite:///c.db"}, "absolute path"),
        ({"dual_catalog_url": "sqlite://"}, "absolute path"),
        ({"dual_catalog_url": _URL, "dual_catalog_type": "glue"}, "other catalogs are not supported"),
        ({"dual_catalog_url": _URL, "dual_catalog_warehouse": "s3://b"}, "its catalog says where it is"),
        ({"dual_catalog_url": _URL, "dual_mode": "upsert", "dual_key": "id"}, "appended to an Iceberg table"),
    ],
)
def test_other_catalogs_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(SinkOptionError, match=why):
        iceberg(**options)


@pytest.mark.parametrize(
    "url", ["postgresql://lake:hunter2@db/iceberg", "postgresql://db/iceberg?user=lake&password=hunter2"]
)
def test_a_password_is_refused_where_the_store_would_keep_it(url: str) -> None:
    with pytest.raises(SinkOptionError, match=r"dual\.catalog\.urlEnv") as refused:
        iceberg(dual_catalog_url=url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("table", ["orders", "delta:/lake/orders", None])
def test_a_catalog_has_no_effect_without_an_iceberg_table(table: str | None) -> None:
    with pytest.raises(SinkOptionError, match=r"dual\.catalog\.name has no effect"):
        with_(dual_catalog_name="x", **({} if table is None else {"dual_table": table}))
