"""`dualwrite doctor`: its checks of brokers of every tier and of both databases; it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.admin import BrokerFeatures, TransactionAdmin, TwoPhaseCommit
from dualwrite.broker_emulator import Acl, AclOperation, BrokerConfig, Emulator, Profile, ResourceType
from dualwrite.cli.doctor_checks import Verdict
from dualwrite.cli.doctor_kafka import cluster_checks
from dualwrite.errors import IncompleteAnswerError
from dualwrite.guarantee import Tier
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from dualwrite.testing.postgres import PostgresServer
from tests.cli.conftest import Call
from tests.producer.tiers import TIERS
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase, unique

FORGETFUL = {PostgresDatabase: {"fsync"}, MariaDbDatabase: {"innodb_flush_log_at_trx_commit"}, SqliteDatabase: set()}
"""The settings of the tests' database servers of which writers warn: they do not force writes to disk."""

ME = "User:ANONYMOUS"
REFUSED = BrokerConfig(
    profile=Profile.KAFKA_4_3, unstable_api_versions_enable=True, transaction_two_phase_commit_enable=False
)


@pytest.mark.parametrize("tier", Tier)
def test_the_tier_of_a_cluster(call: Call, tier: Tier) -> None:
    with Emulator(config=TIERS[tier], nodes=2) as broker:
        done = call("doctor", "--bootstrap-server", broker.bootstrap_servers, "--json")
        assert broker.transactions() == []
    assert (done.code, done.document["healthy"]) == (0, True)
    assert done.document.keys() == {"healthy", "guarantee", "checks"}
    assert done.document["guarantee"]["tier"] == tier
    warned = {check["what"] for check in done.document["checks"] if check["verdict"] == "warn"}
    expected = {
        Tier.KEEP_PREPARED: {"tier"},
        Tier.STORED_PAIR: set(),
        Tier.BOUNDED: {"two-phase commit", "tier"},
        Tier.BOUNDED_V1: {"transaction.version", "two-phase commit", "tier"},
    }
    assert warned == expected[tier]
    assert all(check["remedy"] for check in done.document["checks"] if check["verdict"] != "ok")


def test_two_phase_commit_that_is_off(call: Call) -> None:
    with Emulator(config=REFUSED) as broker:
        done = call("doctor", "--bootstrap-server", broker.bootstrap_servers)
    assert done.code == 0
    assert "warn: broker 0, two-phase commit: set transaction.two.phase.commit.enable=true on the brokers" in done.out
    assert "guarantee: the broker aborts a prepared transaction 900000 ms after its first record" in done.out


@pytest.mark.parametrize("tier", Tier)
def test_whether_a_topic_can_be_repaired(call: Call, tier: Tier) -> None:
    rights = [
        *(
            Acl.allow(ME, AclOperation.WRITE, ResourceType.TOPIC, name)
            for name in ("unreadable", "unknown", "kept", "compacted")
        ),
        *(Acl.allow(ME, AclOperation.READ, ResourceType.TOPIC, name) for name in ("unknown", "kept", "compacted")),
        *(Acl.allow(ME, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name) for name in ("kept", "compacted")),
        *(Acl.allow(ME, each, ResourceType.CLUSTER) for each in (AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION)),
        Acl.allow(ME, AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "dualwrite-probe"),
    ]
    topics = dict.fromkeys(("unreadable", "unknown", "kept", "compacted"), 1)
    with Emulator(config=TIERS[tier], topics=topics, acls=rights) as broker:
        broker.set_config({"cleanup.policy": "compact"}, topic="compacted")
        broker.set_config({"message.timestamp.before.max.ms": "60000"}, topic="kept")
        asked = [option for name in (*topics, "missing") for option in ("--topic", name)]
        done = call("doctor", "--bootstrap-server", broker.bootstrap_servers, "--json", *asked)
        shown = call("doctor", "--bootstrap-server", broker.bootstrap_servers, "--topic", "unreadable")
    checks = {each["where"]: each for each in done.document["checks"] if each["where"].startswith("topic ")}
    is_bounded = tier in (Tier.BOUNDED, Tier.BOUNDED_V1)
    assert {name.removeprefix("topic "): check["verdict"] for name, check in checks.items()} == {
        "unreadable": "fail" if is_bounded else "ok",
        "unknown": "warn",
        "kept": "ok",
        "compacted": "fail" if is_bounded else "ok",
        "missing": "fail",
    }
    assert (done.code, shown.code) == (1, 1 if is_bounded else 0)
    assert checks["topic kept"]["found"] == (
        "yes: readable, cleanup.policy is 'delete'; a record that is published again later than 60000 ms "
        "(message.timestamp.before.max.ms) gets a new timestamp, and keeps its own in a header"
    )
    if is_bounded:
        assert "fail: topic unreadable, can be repaired: dual writes to this topic are refused: grant READ" in shown.out
    else:
        assert f"it need not be on tier {int(tier)}" in checks["topic compacted"]["found"]


@pytest.mark.parametrize(
    ("creates", "rights", "verdict", "found"),
    [
        (False, None, "fail", "no: "),
        (True, None, "warn", "it does not exist, and brokers create it"),
        (True, [AclOperation.DESCRIBE], "warn", "not known: "),
        (True, [], "fail", "no: "),
    ],
)
def test_a_topic_that_does_not_exist_or_may_not_be_seen(
    call: Call, creates: bool, rights: list[AclOperation] | None, verdict: str, found: str
) -> None:
    config = BrokerConfig(auto_create_topics_enable=creates)
    acls = (
        None
        if rights is None
        else (
            Acl.allow(ME, AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "dualwrite-probe"),
            *(Acl.allow(ME, each, ResourceType.TOPIC, "orders") for each in rights),
        )
    )
    with Emulator(config=config, acls=acls) as broker:
        done = call("doctor", "--bootstrap-server", broker.bootstrap_servers, "--json", "--topic", "orders")
        assert "orders" not in broker.cluster.topics
    (check,) = [each for each in done.document["checks"] if each["where"] == "topic orders"]
    assert (check["what"], check["verdict"]) == ("can be written", verdict)
    assert check["found"].startswith(found)
    assert check["remedy"].startswith("create the topic")
    assert done.code == (1 if verdict == "fail" else 0)


def features(broker_id: int, init: int = 6, level: int = 2, supported: int = 2) -> BrokerFeatures:
    versions = {22: (0, init), 26: (0, 5), 0: (3, 13)} | ({65: (0, 0)} if init > 3 else {})
    return BrokerFeatures(
        broker_id, versions, {"transaction.version": (0, supported)}, {"transaction.version": (0, level)}, 1
    )


def test_the_weakest_broker_counts() -> None:
    both = {1: features(1), 2: features(2)}
    answers = {1: TwoPhaseCommit.KEEPS_PREPARED, 2: TwoPhaseCommit.REFUSED}
    checks, tier = cluster_checks(both, answers)
    assert tier is Tier.BOUNDED
    assert any(check.what == "brokers agree" for check in checks)


@pytest.mark.parametrize(("described", "asked"), [((1, 2), (1,)), ((1,), (1, 2))])
def test_a_broker_that_joins_or_leaves_meanwhile(described: tuple[int, ...], asked: tuple[int, ...]) -> None:
    with pytest.raises(IncompleteAnswerError, match="broker 2 has joined or left"):
        cluster_checks({each: features(each) for each in described}, dict.fromkeys(asked, TwoPhaseCommit.REFUSED))


def test_a_broker_that_is_too_old_for_any_tier() -> None:
    checks, tier = cluster_checks({1: features(1, init=2)}, {1: TwoPhaseCommit.NOT_OFFERED})
    assert tier is None
    assert {check.verdict for check in checks} == {Verdict.FAIL}


@pytest.mark.parametrize(("supported", "remedy"), [(2, "kafka-features.sh upgrade"), (1, "Apache Kafka 4.0")])
def test_how_to_raise_the_transaction_version(supported: int, remedy: str) -> None:
    broker = features(1, level=1, supported=supported)
    checks, _ = cluster_checks({1: broker}, {1: TwoPhaseCommit.NOT_OFFERED})
    (check,) = [each for each in checks if each.what == "transaction.version"]
    assert remedy in str(check.remedy)


def test_a_database(call: Call, database: Database, emulator: Emulator) -> None:
    url = database.url.render_as_string(hide_password=False)
    options = ("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--database", url, "--json")
    without = call(*options)
    assert (without.code, without.document["healthy"]) == (0, True)
    (missing,) = [check for check in without.document["checks"] if check["what"] == "kafka_transaction_state"]
    assert (missing["verdict"], missing["found"]) == ("warn", "missing")
    assert "dualwrite init-db" in missing["remedy"]
    assert "the first dual write does" in missing["remedy"]
    assert not sa.inspect(database.engine).has_table("kafka_transaction_state")
    create_state_table(database.engine)
    done = call(*options)
    warned = {check["what"] for check in done.document["checks"] if check["verdict"] == "warn"}
    assert warned >= FORGETFUL[type(database)]
    assert (done.code, done.document["healthy"]) == (0, True)


def verdicts(call: Call, emulator: Emulator, url: sa.URL) -> dict[str, str]:
    text = url.render_as_string(hide_password=False)
    done = call("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--database", text, "--json")
    return {check["what"]: check["verdict"] for check in done.document["checks"] if check["where"] == "database"}


def test_a_database_that_every_writer_refuses(call: Call, postgres: PostgresDatabase, emulator: Emulator) -> None:
    with postgres.engine.begin() as connection:
        connection.exec_driver_sql("CREATE FUNCTION version() RETURNS text LANGUAGE sql AS $$SELECT 'CockroachDB'$$")
    url = postgres.url.update_query_dict({"options": f"{postgres.url.query['options']},pg_catalog"})
    assert verdicts(call, emulator, url)["cockroachdb"] == "fail"


def test_settings_of_postgres_that_forget(call: Call, postgres: PostgresDatabase, emulator: Emulator) -> None:
    create_state_table(postgres.engine)
    path = postgres.url.query["options"]
    forgetful = postgres.url.update_query_dict(
        {"options": f"{path} -csynchronous_commit=off -cdefault_transaction_isolation=serializable"}
    )
    found = verdicts(call, emulator, forgetful)
    assert (found["synchronous_commit"], found["isolation level"]) == ("warn", "warn")


def test_each_way_of_lowering_synchronous_commit_is_found(
    call: Call, postgres_server: PostgresServer, emulator: Emulator
) -> None:
    name = unique("test").replace("-", "_")
    url = postgres_server.create_database(name)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    create_state_table(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(f"ALTER ROLE {name} SET synchronous_commit = off")
        connection.exec_driver_sql(f"ALTER ROLE {name} IN DATABASE {name} SET synchronous_commit = local")
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = remote_write")
    try:
        done = call(
            *("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--json"),
            *("--database", url.render_as_string(hide_password=False)),
        )
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER ROLE {name} RESET ALL")
            connection.exec_driver_sql(f"ALTER ROLE {name} IN DATABASE {name} RESET ALL")
            connection.exec_driver_sql(f"DROP ROLE {name}")
    found = {
        check["what"]: (check["found"], check["verdict"])
        for check in done.document["checks"]
        if check["what"].startswith("synchronous_commit")
    }
    assert found == {
        "synchronous_commit": ("remote_write, from: database", "warn"),
        f"synchronous_commit of database {name}": ("remote_write", "warn"),
        f"synchronous_commit of role {name}": ("off", "warn"),
        f"synchronous_commit of role {name} in database {name}": ("local", "warn"),
    }


def test_a_user_of_postgres_without_rights(call: Call, postgres_server: PostgresServer, emulator: Emulator) -> None:
    database = PostgresDatabase(postgres_server)
    create_state_table(database.engine)
    create_lease_table(database.engine)
    path = database.url.query["options"]
    schema = str(path).rpartition("=")[2]
    administrator = sa.create_engine(postgres_server.url)
    try:
        with administrator.begin() as connection:
            connection.execute(sa.text(f"CREATE ROLE {schema}_reader"))
            connection.execute(sa.text(f"GRANT {schema}_reader TO {schema}"))
            connection.execute(sa.text(f"GRANT USAGE ON SCHEMA {schema} TO {schema}_reader"))
            connection.execute(sa.text(f"GRANT SELECT ON {schema}.kafka_transaction_lease TO {schema}_reader"))
        url = database.url.update_query_dict({"options": f"{path} -crole={schema}_reader"})
        text = url.render_as_string(hide_password=False)
        done = call("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--database", text)
        assert done.code == 1
        assert "GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state TO" in done.out
        assert "GRANT SELECT ON kafka_transaction_database TO" in done.out
        assert "GRANT INSERT, UPDATE ON kafka_transaction_lease TO" in done.out
        assert done.out.splitlines()[-2].startswith("dual writes do not work here")
    finally:
        with administrator.begin() as connection:
            connection.execute(sa.text(f"DROP OWNED BY {schema}_reader"))
            connection.execute(sa.text(f"DROP ROLE {schema}_reader"))
        administrator.dispose()
        database.close()


def test_without_a_database_the_missing_half_is_named(call: Call, emulator: Emulator) -> None:
    done = call("doctor", "--bootstrap-server", emulator.bootstrap_servers)
    assert done.code == 0
    assert done.out.splitlines()[-3:] == [
        "dual writes work here, within the limits of the warnings",
        "no database was checked: give --database to check one",
        "no topic was checked: give --topic for each that blocks send to",
    ]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (
            "CREATE TABLE kafka_transaction_state (transactional_id TEXT PRIMARY KEY)",
            "lacks manifest, prepared_transaction_state",
        ),
        (
            "CREATE TABLE kafka_transaction_state "
            "(transactional_id TEXT, prepared_transaction_state TEXT, updated_at TEXT, manifest TEXT)",
            "primary key none",
        ),
        (
            "CREATE TABLE kafka_transaction_state "
            "(transactional_id TEXT PRIMARY KEY, prepared_transaction_state TEXT, updated_at TEXT)",
            "lacks manifest",
        ),
    ],
)
def test_a_table_of_another_definition(call: Call, emulator: Emulator, tmp_path: Path, ddl: str, said: str) -> None:
    database = SqliteDatabase(tmp_path)
    with database.engine.begin() as connection:
        connection.execute(sa.text(ddl))
    url = database.url.render_as_string(hide_password=False)
    done = call("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--database", url)
    assert done.code == 1
    assert said in done.out


def test_a_failed_check_does_not_hide_the_others(call: Call, emulator: Emulator, tmp_path: Path) -> None:
    nowhere = f"sqlite:///{tmp_path / 'nowhere.db'}"
    done = call("doctor", "--bootstrap-server", emulator.bootstrap_servers, "--database", nowhere)
    assert done.code == 2
    assert "1 (KEEP_PREPARED)" in done.out
    assert "there is no file" in done.out
    assert not (tmp_path / "nowhere.db").exists()
    away = call("doctor", "--bootstrap-server", "127.0.0.1:1", "--timeout-ms", 200, "--database", nowhere)
    assert away.code == 2
    assert "kafka, reachable" in away.out


def test_asking_creates_no_id(emulator: Emulator) -> None:
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        assert admin.describe_two_phase_commit("some-id") == {0: TwoPhaseCommit.KEEPS_PREPARED}
        assert admin.describe_transactions(["some-id"]) == {"some-id": None}
