"""Tests for `make proof` alone: those that take long, or repeat others on another database.

Each of them has the marker `proof`, and `make test` runs the others (`-m "not proof"`) with fewer random `examples`.
Whole files are then not even collected. `make test` keeps: every table of rules, one real SIGKILL per pause point, one
session of Spark, one real Apache Kafka, each database but MariaDB, and in a matrix each tier but the second.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

FOLDERS: Final = ("tests/interop/", "tests/pgbouncer/")
"""Foreign clients in five languages, and a pooler between the writers and Postgres."""

RAW_WIRE: Final = "tests/interop/raw_wire/"
"""Its tests of the emulator alone take a minute and run in `make test`; those of a real Apache Kafka run in `make
proof`."""

FILES: Final = frozenset(
    {
        "tests/test_site.py",
        "tests/admin/test_apache_nodes.py",
        "tests/apache_kafka/test_changing_rules.py",
        "tests/apache_kafka/test_in_doubt.py",
        "tests/apache_kafka/test_late_requests.py",
        "tests/apache_kafka/test_log_reading.py",
        "tests/apache_kafka/test_missing_markers.py",
        "tests/apache_kafka/test_one_judge.py",
        "tests/apache_kafka/test_recreated_topics.py",
        "tests/apache_kafka/test_repair.py",
        "tests/apache_kafka/test_repairability.py",
        "tests/apache_kafka/test_security.py",
        "tests/apache_kafka/test_spark_repair.py",
        "tests/apache_kafka/test_tiers.py",
        "tests/apache_kafka/test_topic_store.py",
        "tests/apache_kafka/test_topic_store_rights.py",
        "tests/cli/test_recover.py",
        "tests/conformance/test_databases.py",
        "tests/crash/test_cancellation.py",
        "tests/crash/test_consume_kills.py",
        "tests/crash/test_django_matrix.py",
        "tests/crash/test_driver_matrix.py",
        "tests/crash/test_interruptions.py",
        "tests/crash/test_key_order.py",
        "tests/crash/test_key_value_matrix.py",
        "tests/crash/test_pool_async.py",
        "tests/durability/test_synchronous_standby.py",
        "tests/emulator/control/test_page.py",
        "tests/emulator/hostile/test_every_array.py",
        "tests/emulator/hostile/test_large_groups.py",
        "tests/emulator/hostile/test_large_topics.py",
        "tests/emulator/hostile/test_long_loops.py",
        "tests/emulator/test_consumer_group_clients.py",
        "tests/emulator/transactions/test_interleavings.py",
        "tests/examples/test_celery_worker.py",
        "tests/examples/test_demo.py",
        "tests/examples/test_django_asgi.py",
        "tests/examples/test_django_gunicorn.py",
        "tests/examples/test_fastapi_service.py",
        "tests/examples/test_java_project.py",
        "tests/examples/test_service_kills.py",
        "tests/examples/test_lives.py",
        "tests/examples/test_node_project.py",
        "tests/examples/test_recovery_cron.py",
        "tests/examples/test_services.py",
        "tests/producer/test_late_requests.py",
        "tests/pytest_plugin/test_page_and_project.py",
        "tests/recipes/test_consume_blame.py",
        "tests/recipes/test_diversion.py",
        "tests/spark/test_chaos.py",
        "tests/spark/test_connect.py",
        "tests/spark/test_datasource.py",
        "tests/spark/test_driver_kills.py",
        "tests/spark/test_failure_matrix.py",
        "tests/spark/test_foreach_batch.py",
        "tests/spark/test_given_up.py",
        "tests/spark/test_java.py",
        "tests/spark/test_lake_crashes.py",
        "tests/spark/test_lake_spark.py",
        "tests/spark/test_pages.py",
        "tests/spark/test_protocol_crashes.py",
        "tests/spark/test_protocol_zombies.py",
        "tests/spark/test_source.py",
        "tests/spark/test_source_security.py",
        "tests/spark/test_sql.py",
        "tests/spark/test_topic_pipeline.py",
        "tests/spark/test_topic_store_model.py",
        "tests/spark/test_topic_store_stateful.py",
        "tests/test_docs_types.py",
        "tests/unit/test_benchmarks.py",
    }
)

FUNCTIONS: Final = frozenset(
    {
        "tests/crash/test_chaos.py::test_both_sides_agree_on_every_tier",
        "tests/crash/test_outbox_kills.py::test_a_publisher_is_killed_on_every_tier",
        "tests/crash/test_outbox_kills.py::test_a_publisher_of_each_library_is_killed",
        "tests/crash/test_outbox_kills.py::test_a_transaction_prepared_by_a_dead_publisher_is_aborted_by_the_broker",
        "tests/crash/test_outbox_kills.py::test_the_same_for_a_publisher_on_another_database",
        "tests/crash/test_matrix.py::test_a_fault_of_the_database_at_a_point",
        "tests/crash/test_pool_leases.py::test_a_lease_that_expires_during_a_dual_write",
        "tests/crash/test_strikes.py::test_every_place_of_a_block",
        "tests/crash/test_strikes.py::test_every_place_of_a_block_behind_a_lost_commit",
        "tests/crash/test_strikes.py::test_places_of_a_recovery",
        "tests/crash/test_strikes.py::test_places_of_the_first_block_and_the_close",
        "tests/django/test_strikes.py::test_every_place_of_a_block",
        "tests/crash/test_matrix.py::test_another_fault_at_a_point",
        "tests/examples/test_django_shop.py::test_the_commands_of_the_shop_run",
        "tests/proof/test_exhaustive.py::test_nothing_is_wrong_in_a_large_space",
        "tests/proof/test_outbox.py::test_nothing_is_wrong_in_a_large_space",
        "tests/proof/test_reductions.py::test_both_searches_reach_the_same_ends",
        "tests/proof/test_reductions.py::test_every_state_comes_to_rest_without_another_fault",
        "tests/proof/test_reductions.py::test_dead_states_stay_dead_and_change_nothing",
        "tests/proof/test_replay.py::test_model_and_servers_agree_in_many_histories",
        "tests/proof/test_replay.py::test_samples_have_every_kind_of_step_but_rare_ones",
        "tests/test_operating_files.py::test_prometheus_takes_the_alerts_and_every_query_of_the_dashboard",
        "tests/cli/test_verify.py::test_markers_that_are_lost_are_found",
        "tests/cli/test_verify.py::test_ctrl_c_leaves_nothing_open",
        "tests/cli/test_verify.py::test_workers_end_with_their_command",
        "tests/cli/test_verify.py::test_both_sides_agree_and_nothing_is_left",
        "tests/cli/test_verify.py::test_commits_that_the_broker_turns_into_aborts_are_found",
        "tests/cli/test_verify.py::test_kept_tables_and_topics_are_named",
        "tests/emulator/hostile/test_large_requests.py::test_a_short_request_with_a_long_response",
        "tests/emulator/hostile/test_large_requests.py::test_many_acls",
        "tests/emulator/hostile/test_large_requests.py::test_other_clients_are_served_in_between",
        "tests/emulator/storage/test_damage.py::test_every_damage_to_every_file",
        "tests/producer/test_monkey_patches.py::test_a_process_in_which_other_parts_are_patched_writes",
        "tests/producer/test_monkey_patches.py::test_an_older_producer_does_nothing_once_threads_are_greenlets",
        "tests/recipes/test_faststream_brokers.py::test_the_partition_is_lost_in_the_middle_of_a_block",
        "tests/recipes/test_kafka_away.py::test_a_pools_timeout_says_that_kafka_keeps_slots_aside",
        "tests/recipes/test_kafka_away.py::test_under_load_no_transaction_stays_open",
        "tests/recipes/test_refused_blocks.py::test_refused_blocks_on_other_tiers",
        "tests/recipes/test_repair.py::test_a_repair_that_sleeps_at_any_point",
        "tests/recipes/test_repair.py::test_two_processes_that_repair_at_once",
        "tests/recipes/test_repair.py::test_committed_records_are_never_published_again",
        "tests/recipes/test_went_back.py::test_a_repair_that_was_not_committed_is_made_anew",
        "tests/recipes/test_torn.py::test_a_process_sleeps_before_or_after_reading",
        "tests/recipes/test_torn.py::test_a_hanging_transaction_is_not_taken_for_an_end",
        "tests/recipes/test_torn.py::test_complete_transactions_are_left_alone",
        "tests/spark/test_lake_strays.py::test_an_older_copy_of_the_table_keeps_its_missing_files",
        "tests/spark/test_lake_strays.py::test_another_table_in_its_place_is_left_alone",
        "tests/spark/test_lake_strays.py::test_files_of_others_stay",
        "tests/spark/test_protocol.py::test_steps_in_every_order",
        "tests/spark/test_recreated_topics.py::test_recreated_during_the_read",
        "tests/recovery/test_another_cluster.py::test_writers_go_on_in_the_next_cluster",
        "tests/spark/test_repair.py::test_a_finisher_that_sleeps_at_any_point",
        "tests/spark/test_repair.py::test_a_repair_that_is_aborted_at_any_step",
        "tests/spark/test_repair.py::test_a_repair_that_is_killed_at_any_step",
        "tests/spark/test_repair.py::test_an_operator_marks_the_batch_lost_during_a_repair",
        "tests/spark/test_repair.py::test_recovery_lists_the_repairs_and_makes_them",
        "tests/spark/test_repair.py::test_two_finishers_that_take_turns",
        "tests/spark/test_repair.py::test_records_aborted_against_the_decision_are_published_again",
        "tests/spark/test_repair.py::test_repaired_records_are_never_published_again",
        "tests/spark/test_repair.py::test_repaired_records_are_not_published_again_for_a_restored_store",
        "tests/spark/test_repair.py::test_without_read_an_attempt_committed_by_its_coordinator_is_done",
        "tests/recipes/test_repair_owed.py::test_a_recovery_that_fails_at_any_point_forgets_nothing",
    }
)

PARAMETERS: Final = {
    "database": {"mariadb"},
    "engine": {"mariadb"},
    "face": {"mariadb"},
    "faulty": {"mariadb"},
    "scenario": {"mariadb"},
    "store": {"mariadb"},
    "cause": {"missing"},
    "cluster": {"tier 3", "tier 4"},
    "open_style": {"psycopg-awaited", "sqlalchemy"},
    "library": {"confluent-kafka, cooperative"},
    "any_style": {"mariadb", "psycopg-awaited", "sqlalchemy", "sqlite-awaited"},
}
"""Of fixtures: the ids that only `make proof` runs."""

SECOND_TIER: Final = re.compile(r"\btier 2\b|STORED_PAIR")
"""In ids of the tests of `MATRICES`. It lies between two others: unbounded as tier 1, completed as tier 3.

`make test` has it where a client finds out about tiers, in `tests/producer`, and on a real Apache Kafka.
"""

MATRICES: Final = ("tests/recipes/", "tests/spark/")


_LEAVES_OUT: Final[list[bool]] = []


def examples(count: int) -> int:
    """Return how many of the examples of a property `make test` looks at: a third of those of `make proof`."""
    return -(-count // 3) if any(_LEAVES_OUT) else count


def pytest_configure(config: pytest.Config) -> None:
    _LEAVES_OUT.append(config.getoption("markexpr") == "not proof")


def is_proof_only(item: pytest.Item) -> bool:
    """Return whether `make test` leaves a test out."""
    path = item.path.relative_to(ROOT).as_posix()
    function = f"{path}::{getattr(item, 'originalname', item.name)}"
    is_in_folder = path.startswith(FOLDERS) and (not path.startswith(RAW_WIRE) or _is_on_a_real_broker(item))
    is_second_tier = path.startswith(MATRICES) and SECOND_TIER.search(item.name) is not None
    return path in FILES or is_in_folder or is_second_tier or function in FUNCTIONS or _has_left_out_parameter(item)


def _is_on_a_real_broker(item: pytest.Item) -> bool:
    """Return whether a parameter names one, or, where none names a broker, a fixture."""
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else [str(value) for value in callspec.params.values()]
    brokers = [value for value in values if value.startswith(("apache_kafka", "emulated_kafka"))]
    return any("apache_kafka" in name for name in brokers or getattr(item, "fixturenames", []))


def _has_left_out_parameter(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return False
    ids = {str(value) for value in callspec.params.values()} | {f"tier {value}" for value in callspec.params.values()}
    return any(name in callspec.params and ids & left_out for name, left_out in PARAMETERS.items())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave whole files out where none of their tests would run."""
    if config.getoption("markexpr") != "not proof" or not collection_path.is_relative_to(ROOT):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    is_near_raw_wire = RAW_WIRE.startswith(f"{path}/") or path.startswith(RAW_WIRE)
    return True if path in FILES or (f"{path}/".startswith(FOLDERS) and not is_near_raw_wire) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that only `make proof` runs."""
    for item in items:
        if is_proof_only(item):
            item.add_marker(pytest.mark.proof)
