"""The cases that must pass, by the client's folder and file, and those that are known to fail, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .client_folders import Fault, KnownFailure, On

_RECORDS: Final = (
    "a_message_that_is_too_large_is_refused compression idempotent_producer keys_headers_and_timestamps large_messages"
)
"""Of `record_cases.py`. The others are of `transaction_cases.py`, `killed_copy.py` and `program_cases.py`."""
_TRANSACTIONS: Final = (
    "commit_and_abort empty_transactions many_records_in_compressed_batches offsets_of_a_group_without_members "
    "open_transaction_is_seen_by_uncommitted_readers_only reads_what_another_client_wrote "
    "second_producer_fences_the_first transaction_over_many_partitions transaction_timeout"
)
_KILLED: Final = "copy_while_the_broker_is_killed_is_exactly_once"
_PROGRAM_RECORDS: Final = (
    "compression keys_headers_and_timestamps large_messages members_share_partitions reads_what_was_committed"
)
_PROGRAM_TRANSACTIONS: Final = "commit_and_abort offsets_in_transactions second_producer_fences_the_first"
_PROGRAM_SECURITY: Final = "login who_may_not_write_is_refused wrong_password_is_refused"
_PROGRAM_ADMINISTRATION: Final = "groups settings topics"

_OF_CLIENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "confluent_kafka": {
        "administration": "broker_settings cluster election groups records_and_offsets topic_settings topics",
        "consumer_groups": (
            "a_group_changes_its_protocol another_member_goes_on_where_the_first_one_left members_come_and_go"
        ),
        "group_members": "consume_transform_produce generation_fences_a_former_member",
        "killed_broker": _KILLED,
        "records": _RECORDS,
        "security": "login rules_allow_and_deny users_are_made_over_the_wire wrong_password_is_refused",
        "transactions": _TRANSACTIONS,
    },
    "aiokafka": {
        "administration": "cluster records_and_groups settings topics",
        "killed_broker": _KILLED,
        "records": _RECORDS,
        "transactions": _TRANSACTIONS,
    },
    "kafka_python": {
        "administration": "cluster records settings topics",
        "records": _RECORDS,
        "transaction_admin": (
            "abort_of_a_hanging_transaction describe_producers describe_transactions list_transactions nothing_hangs "
            "offsets_by_isolation"
        ),
        "transactions": _TRANSACTIONS,
    },
    "kafkajs": {
        "administration": f"{_PROGRAM_ADMINISTRATION} cluster offsets_and_records",
        "killed_broker": _KILLED,
        "records": f"{_PROGRAM_RECORDS} acks idempotent_producer tombstones",
        "security": f"{_PROGRAM_SECURITY} rules",
        "transactions": f"{_PROGRAM_TRANSACTIONS} "
        "copy_with_aborts_is_exactly_once open_transaction_is_seen_by_uncommitted_readers",
    },
    "franz_go": {
        "administration": f"{_PROGRAM_ADMINISTRATION} cluster log_directories quotas records",
        "killed_broker": _KILLED,
        "records": f"{_PROGRAM_RECORDS} fetch_sessions idempotent_producer reads_without_a_group",
        "security": _PROGRAM_SECURITY,
        "transactions": f"{_PROGRAM_TRANSACTIONS} copy_with_aborts_is_exactly_once state_of_an_open_transaction",
    },
    "sarama": {
        "administration": _PROGRAM_ADMINISTRATION,
        "records": _PROGRAM_RECORDS,
        "transactions": _PROGRAM_TRANSACTIONS,
    },
    "kafka_go": {
        "administration": _PROGRAM_ADMINISTRATION,
        "records": (
            "compression keys_headers_and_timestamps large_messages members_share_partitions "
            "reads_a_partition_without_a_group"
        ),
    },
    "rust_rdkafka": {
        "records": _PROGRAM_RECORDS,
        "transactions": _PROGRAM_TRANSACTIONS,
    },
    "java": {
        "administration": (
            "access_control_is_off broker_settings cluster_id_and_api_versions default_settings_of_a_topic "
            "deletion_of_a_group election_of_preferred_leaders features groups log_directories quotas records "
            "topic_settings topics"
        ),
        "console": (
            "compression console_consumer_reads_committed_records_only console_producer_with_keys_and_headers "
            "consumer_performance producer_performance_with_transactions verifiable_producer_and_consumer"
        ),
        "consumer_protocol": "console_consumer_and_what_the_tools_say_of_its_group",
        "killed_broker": _KILLED,
        "security": "login rules_allow_and_deny users_of_scram wrong_password_is_refused",
        "share_groups": (
            "aborted_records_are_not_delivered administration implicit_acknowledgement killed_member tools "
            "two_members_accept_release_and_reject"
        ),
        "three_nodes": "copies_move preferred_leaders_are_elected",
        "transaction_tools": (
            "abort_of_what_is_not_there_is_refused copier_with_random_aborts_copies_exactly_once describe_producers "
            "find_hanging_and_abort list_and_describe list_by_filters"
        ),
    },
    "spark": {
        "connector": (
            "a_batch_query_over_aborted_records_and_an_open_transaction a_stream_into_sparks_own_sink "
            "from_sparks_own_source_to_this_sink"
        ),
    },
}
"""The names of the cases that must pass, with spaces between. Only grows."""

MUST_PASS: Final[Mapping[str, frozenset[str]]] = {
    folder: frozenset(f"{file}/{case}" for file, cases in files.items() for case in cases.split())
    for folder, files in _OF_CLIENTS.items()
}

KNOWN_FAILURES: Final[Mapping[str, Mapping[str, KnownFailure]]] = {
    "kafka_go": {
        "records/reads_what_was_committed": KnownFailure(
            (On.EMULATOR, On.APACHE_KAFKA),
            Fault.CLIENT,
            "its isolation level limits how far the broker reads; what was aborted, and the markers, are not left out",
        ),
    },
}
