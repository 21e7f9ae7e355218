"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "administration/access_control_is_off",
    "administration/broker_settings",
    "administration/cluster_id_and_api_versions",
    "administration/default_settings_of_a_topic",
    "administration/deletion_of_a_group",
    "administration/election_of_preferred_leaders",
    "administration/features",
    "administration/groups",
    "administration/log_directories",
    "administration/quotas",
    "administration/records",
    "administration/topic_settings",
    "administration/topics",
    "console/compression",
    "console/console_consumer_reads_committed_records_only",
    "console/console_producer_with_keys_and_headers",
    "console/consumer_performance",
    "console/producer_performance_with_transactions",
    "console/verifiable_producer_and_consumer",
    "consumer_protocol/console_consumer_and_what_the_tools_say_of_its_group",
    "killed_broker/copy_while_the_broker_is_killed_is_exactly_once",
    "security/login",
    "security/rules_allow_and_deny",
    "security/users_of_scram",
    "security/wrong_password_is_refused",
    "share_groups/aborted_records_are_not_delivered",
    "share_groups/administration",
    "share_groups/implicit_acknowledgement",
    "share_groups/killed_member",
    "share_groups/tools",
    "share_groups/two_members_accept_release_and_reject",
    "three_nodes/copies_move",
    "three_nodes/preferred_leaders_are_elected",
    "transaction_tools/abort_of_what_is_not_there_is_refused",
    "transaction_tools/copier_with_random_aborts_copies_exactly_once",
    "transaction_tools/describe_producers",
    "transaction_tools/find_hanging_and_abort",
    "transaction_tools/list_and_describe",
    "transaction_tools/list_by_filters",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
