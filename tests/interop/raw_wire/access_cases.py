"""Access control: requests, the rules of their users, and the responses of a real Apache Kafka 4.4.0.

The responses were taken from that broker; `codes` in `access_requests.py` defines their notation, and `creation` in
`access.py` that of a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Rules = str
"""Lines with commas between them."""
Answer = Mapping[str, int]


def one(codes: Mapping[Rules, int], name: str = "") -> Sequence[tuple[Rules, Answer]]:
    """Cases whose responses have one code, by their rules; it stands under `name`."""
    return [(rules, {name: code}) for rules, code in codes.items()]


CASES: Mapping[str, Sequence[tuple[Rules, Answer]]] = {
    "produce": [
        ("", {"known": 29, "missing": 29}),
        ("WRITE topic known", {"known": 0, "missing": 29}),
        ("WRITE topic missing", {"known": 29, "missing": 3}),
        ("WRITE topic *", {"known": 0, "missing": 3}),
        ("WRITE topic kno...", {"known": 0, "missing": 29}),
        ("READ topic known", {"known": 29, "missing": 29}),
        ("ALL topic known", {"known": 0, "missing": 29}),
        ("WRITE topic *, not WRITE topic known", {"known": 29, "missing": 3}),
        ("WRITE topic *, not ALL topic kno...", {"known": 29, "missing": 3}),
        ("WRITE topic known from 127.0.0.1", {"known": 0, "missing": 29}),
        ("WRITE topic known from 10.1.1.1", {"known": 29, "missing": 29}),
        ("WRITE topic *, not WRITE topic known from 10.1.1.1", {"known": 0, "missing": 3}),
        ("WRITE topic *, not READ topic known", {"known": 0, "missing": 3}),
    ],
    "produce_by_id": [
        ("", {"#": 100, "#known": 29}),
        ("WRITE topic known", {"#": 100, "#known": 0}),
    ],
    "produce_in_transaction": [
        ("", {"known": 53, "missing": 53}),
        ("WRITE topic known", {"known": 53, "missing": 53}),
        ("WRITE id ?", {"known": 29, "missing": 29}),
        ("WRITE topic known, WRITE id ?", {"known": 0, "missing": 29}),
        ("WRITE topic *, WRITE id ?", {"known": 0, "missing": 3}),
    ],
    "fetch": [
        ("", {"": 0, "known": 29, "missing": 29}),
        ("READ topic known", {"": 0, "known": 0, "missing": 29}),
        ("DESCRIBE topic *", {"": 0, "known": 29, "missing": 29}),
        ("READ topic *", {"": 0, "known": 0, "missing": 3}),
    ],
    "fetch_by_id": [
        ("", {"": 0, "#": 100, "#known": 29}),
        ("READ topic known", {"": 0, "#": 100, "#known": 0}),
    ],
    "fetch_as_replica": [
        ("", {"": 0, "known": 29, "missing": 29}),
        ("READ topic *", {"": 0, "known": 29, "missing": 29}),
        ("CLUSTER_ACTION cluster", {"": 0, "known": 6, "missing": 3}),
    ],
    "list_offsets": [
        ("", {"known": 29, "missing": 29}),
        ("DESCRIBE topic known", {"known": 0, "missing": 29}),
        ("READ topic known", {"known": 0, "missing": 29}),
        ("WRITE topic *", {"known": 0, "missing": 3}),
        ("DESCRIBE_CONFIGS topic *", {"known": 29, "missing": 29}),
        ("READ topic *, not DESCRIBE topic known", {"known": 29, "missing": 3}),
    ],
    "offset_for_leader_epoch": [
        ("", {"known": 29, "missing": 29}),
        ("DESCRIBE topic known", {"known": 0, "missing": 29}),
        ("CLUSTER_ACTION cluster", {"known": 0, "missing": 3}),
    ],
    "delete_records": [
        ("", {"known": 29, "missing": 29}),
        ("DELETE topic known", {"known": 0, "missing": 29}),
        ("DELETE topic *", {"known": 0, "missing": 3}),
        ("WRITE topic *", {"known": 29, "missing": 29}),
    ],
    "describe_producers": [
        ("", {"known": 29, "missing": 29}),
        ("DESCRIBE topic *", {"known": 29, "missing": 29}),
        ("READ topic known", {"known": 0, "missing": 29}),
        ("READ topic *", {"known": 0, "missing": 3}),
    ],
    "metadata": [
        ("", {"known": 29, "missing": 29}),
        ("DESCRIBE topic known", {"known": 0, "missing": 29}),
        ("READ topic missing", {"known": 29, "missing": 3}),
        ("CREATE topic *", {"known": 29, "missing": 29}),
    ],
    "metadata_of_all": [
        ("", {}),
        ("DESCRIBE topic known", {"known": 0}),
        ("ALTER topic kno...", {"known": 0}),
    ],
    "metadata_by_id": [
        ("", {"#known": 29}),
        ("DESCRIBE topic known", {"known": 0}),
    ],
    "metadata_that_creates": [
        ("", {"new-?": 29}),
        ("DESCRIBE topic *", {"new-?": 29}),
        ("CREATE topic *", {"new-?": 29}),
        ("CREATE topic *, DESCRIBE topic *", {"new-?": 0}),
        ("CREATE cluster, DESCRIBE topic *", {"new-?": 0}),
    ],
    "metadata_with_operations": [
        ("DESCRIBE topic known", {"known": 0, "known operations": 256, "operations": 0}),
        ("READ topic known, DESCRIBE cluster", {"known": 0, "known operations": 264, "operations": 256}),
        ("ALL topic *, ALL cluster", {"known": 0, "known operations": 3576, "operations": 8096}),
        (
            "WRITE topic *, ALTER_CONFIGS cluster, ALTER cluster",
            {"known": 0, "known operations": 272, "operations": 3456},
        ),
    ],
    "describe_topic_partitions": [
        ("", {"known": 29, "missing": 29}),
        ("DESCRIBE topic known", {"known": 0, "known operations": 256, "missing": 29}),
        ("READ topic missing", {"known": 29, "missing": 3, "missing operations": 264}),
        ("DESCRIBE topic *", {"known": 0, "known operations": 256, "missing": 3, "missing operations": 256}),
    ],
    "create_topics": [
        ("", {"known": 29, "new-?": 29}),
        ("CREATE topic *", {"known": 36, "new-?": 0, "new-? configs": 29}),
        ("CREATE topic new-?", {"known": 29, "new-?": 0, "new-? configs": 29}),
        ("CREATE cluster", {"known": 36, "new-?": 0, "new-? configs": 29}),
        ("CREATE cluster, DESCRIBE_CONFIGS topic *", {"known": 36, "new-?": 0}),
        ("CREATE topic *, ALTER_CONFIGS topic new-?", {"known": 36, "new-?": 0}),
    ],
    "create_partitions": [
        ("", {"known": 29, "missing": 29}),
        ("ALTER topic known", {"known": 37, "missing": 29}),
        ("ALTER topic *", {"known": 37, "missing": 3}),
        ("CREATE topic *", {"known": 29, "missing": 29}),
    ],
    "delete_topics": [
        ("", {"doomed-?": 29, "missing": 29}),
        ("DELETE topic doomed-?", {"doomed-?": 0, "missing": 29}),
        ("DESCRIBE topic *", {"doomed-?": 29, "missing": 3}),
        ("DELETE topic *", {"doomed-?": 0, "missing": 3}),
        ("DELETE cluster", {"doomed-?": 0, "missing": 3}),
        ("DELETE topic *, not DESCRIBE topic *", {"doomed-?": 29, "missing": 29}),
    ],
    "delete_topics_by_id": [
        ("", {"#": 29}),
        ("DESCRIBE topic *", {"doomed-?": 29}),
        ("DELETE topic doomed-?", {"doomed-?": 0}),
        ("DELETE cluster", {"doomed-?": 0}),
    ],
    "delete_topics_by_unknown_id": one({"": 100, "DELETE topic *": 100}, "#"),
    "find_group_coordinator": one({"": 30, "DESCRIBE group offsets": 0, "READ group *": 0}),
    "find_transaction_coordinators": [
        ("", {"other": 53, "?": 53}),
        ("DESCRIBE id ?", {"other": 53, "?": 0}),
        ("WRITE id *", {"other": 0, "?": 0}),
    ],
    "find_share_coordinator": one({"": 31, "CLUSTER_ACTION cluster": 42}, "no-key"),
    "offset_commit": [
        ("", {"known": 30, "missing": 30}),
        ("READ group group-?", {"known": 29, "missing": 29}),
        ("READ topic *", {"known": 30, "missing": 30}),
        ("READ group group-?, READ topic known", {"known": 0, "missing": 29}),
        ("READ group group-..., READ topic *", {"known": 0, "missing": 3}),
        ("DESCRIBE group *, READ topic *", {"known": 30, "missing": 30}),
        ("READ group *, DESCRIBE topic *", {"known": 29, "missing": 29}),
    ],
    "offset_commit_by_id": [
        ("", {"#": 30, "#known": 30}),
        ("READ group *", {"#": 100, "#known": 29}),
        ("READ group *, READ topic known", {"#": 100, "#known": 0}),
    ],
    "offset_fetch": [
        ("", {"": 30}),
        ("DESCRIBE group offsets", {"": 0, "known": 29, "missing": 29}),
        ("DESCRIBE group offsets, DESCRIBE topic known", {"": 0, "known": 0, "missing": 29}),
        ("READ group *, READ topic *", {"": 0, "known": 0, "missing": 0}),
        ("DESCRIBE topic *", {"": 30}),
    ],
    "offset_fetch_of_all": [
        ("", {"offsets": 30, "others": 30}),
        ("DESCRIBE group offsets", {"offsets": 0, "others": 30}),
        ("DESCRIBE group offsets, DESCRIBE topic known", {"offsets": 0, "offsets/known": 0, "others": 30}),
        (
            "READ group *, READ topic *",
            {"offsets": 0, "offsets/known": 0, "offsets/other": 0, "others": 0, "others/known": 0, "others/other": 0},
        ),
    ],
    "offset_fetch_by_id": [
        ("", {"offsets": 30}),
        ("DESCRIBE group offsets", {"offsets": 0, "offsets/#": 100, "offsets/#known": 29}),
        ("DESCRIBE group offsets, DESCRIBE topic known", {"offsets": 0, "offsets/#": 100, "offsets/#known": 0}),
    ],
    "offset_delete": [
        ("", {"": 30}),
        ("DELETE group *", {"": 0, "known": 29, "missing": 29}),
        ("DELETE group *, READ topic known", {"": 0, "known": 0, "missing": 29}),
        ("DELETE group *, READ topic *", {"": 0, "known": 0, "missing": 3}),
        ("READ group *, READ topic *", {"": 30}),
    ],
    "join_group": one({"": 30, "READ group group-?": 79, "DESCRIBE group *": 30}),
    "sync_group": one({"": 30, "READ group *": 25}),
    "heartbeat": one({"": 30, "READ group *": 25, "DESCRIBE group *": 30}),
    "leave_group": one({"": 30, "READ group *": 25}),
    "describe_groups": [
        ("", {"offsets": 30, "others": 30}),
        ("DESCRIBE group offsets", {"offsets": 0, "offsets operations": 256, "others": 30}),
        ("READ group offsets, DELETE group offsets", {"offsets": 0, "offsets operations": 328, "others": 30}),
        ("ALL group *", {"offsets": 0, "offsets operations": 3400, "others": 0, "others operations": 3400}),
        ("ALTER_CONFIGS group offsets, DELETE group offsets", {"offsets": 0, "offsets operations": 3392, "others": 30}),
    ],
    "list_groups": [
        ("", {"": 0}),
        ("DESCRIBE group offsets", {"": 0, "offsets": 0}),
    ],
    "delete_groups": one({"": 30, "DELETE group group-?": 0, "READ group *": 30}, "group-?"),
    "consumer_group_heartbeat": [
        ("", {"": 30}),
        ("READ group *", {"": 29}),
        ("READ group *, DESCRIBE topic known", {"": 0, "#known": 0}),
        ("DESCRIBE group *, READ topic *", {"": 30}),
    ],
    "consumer_group_heartbeat_with_regex": one({"": 30, "READ group *": 0, "READ group *, DESCRIBE topic known": 0}),
    "consumer_group_describe": [
        ("", {"consumers-?": 30}),
        ("DESCRIBE group *", {"consumers-?": 29}),
        (
            "DESCRIBE group consumers-?, DESCRIBE topic known",
            {"consumers-?": 0, "consumers-? operations": 256, "consumers-?/known": 0},
        ),
        ("ALL group *, READ topic *", {"consumers-?": 0, "consumers-? operations": 3400, "consumers-?/known": 0}),
    ],
    "init_producer_id": one({"": 53, "WRITE id ?": 0, "DESCRIBE id ?": 53, "WRITE id *, not WRITE id ?": 53}),
    "init_producer_id_without_transactions": [
        ("", {"": 31}),
        ("IDEMPOTENT_WRITE cluster", {"": 0}),
        ("WRITE topic some", {"": 0}),
        ("WRITE topic some...", {"": 0}),
        ("READ topic *", {"": 31}),
        ("WRITE topic some, not WRITE topic some", {"": 31}),
        ("WRITE topic some-more, not ALL topic so...", {"": 31}),
        ("WRITE topic some..., not WRITE topic *", {"": 31}),
        ("WRITE topic *, not WRITE topic known", {"": 0}),
        ("WRITE topic s..., not WRITE topic some...", {"": 0}),
        ("not IDEMPOTENT_WRITE cluster, WRITE topic some", {"": 0}),
        ("WRITE id *", {"": 31}),
        ("WRITE topic some from 10.1.1.1", {"": 31}),
    ],
    "init_producer_id_with_two_phase_commit": [
        ("", {"": 53}),
        ("WRITE id ?", {"": 53}),
        ("TWO_PHASE_COMMIT id ?", {"": 53}),
        ("WRITE id ?, TWO_PHASE_COMMIT id ?", {"": 0}),
        ("ALL id ?", {"": 0}),
        ("WRITE id *, TWO_PHASE_COMMIT id ?..., not TWO_PHASE_COMMIT id ?", {"": 53}),
        ("ALL cluster, WRITE id *", {"": 53}),
    ],
    "add_partitions_to_txn": [
        ("", {"known": 53, "other": 53}),
        ("WRITE id ?", {"known": 29, "other": 29}),
        ("WRITE topic *", {"known": 53, "other": 53}),
        ("WRITE id ?, WRITE topic known", {"known": 55, "other": 29}),
        ("WRITE id ?, WRITE topic *", {"known": 0, "other": 0}),
    ],
    "add_partitions_to_txn_by_broker": [
        ("", {"": 31}),
        ("WRITE id ?, WRITE topic *", {"": 31}),
        ("CLUSTER_ACTION cluster", {"": 0, "?": 0, "?/known": 0}),
    ],
    "add_offsets_to_txn": [
        ("", {"": 53}),
        ("WRITE id ?", {"": 30}),
        ("READ group *", {"": 53}),
        ("WRITE id ?, READ group offsets", {"": 0}),
        ("WRITE id ?, DESCRIBE group offsets", {"": 30}),
    ],
    "txn_offset_commit": [
        ("", {"known": 53, "missing": 53}),
        ("WRITE id ?", {"known": 30, "missing": 30}),
        ("WRITE id ?, READ group *", {"known": 29, "missing": 29}),
        ("WRITE id ?, READ group *, READ topic known", {"known": 0, "missing": 29}),
        ("READ group *, READ topic *", {"known": 53, "missing": 53}),
    ],
    "end_txn": one({"": 53, "WRITE id ?": 48, "DESCRIBE id ?": 53}),
    "write_txn_markers": [
        ("", {"known": 31, "missing": 31}),
        ("ALTER cluster", {"known": 0, "missing": 3}),
        ("CLUSTER_ACTION cluster", {"known": 0, "missing": 3}),
        ("DESCRIBE cluster, WRITE topic *", {"known": 31, "missing": 31}),
    ],
    "describe_transactions": [
        ("", {"?": 53}),
        ("DESCRIBE id ?", {"?": 0}),
        ("WRITE id ?, DESCRIBE topic known", {"?": 0, "?/known": 0}),
        ("DESCRIBE id *, READ topic *", {"?": 0, "?/known": 0, "?/other": 0}),
        ("TWO_PHASE_COMMIT id *", {"?": 53}),
    ],
    "list_transactions": [
        ("", {"": 0}),
        ("DESCRIBE id ?", {"": 0, "?": 0}),
        ("DESCRIBE id other", {"": 0}),
        ("DESCRIBE cluster", {"": 0}),
    ],
    "describe_cluster": [
        ("", {"": 0, "operations": 0}),
        ("DESCRIBE cluster", {"": 0, "operations": 256}),
        ("ALTER cluster", {"": 0, "operations": 384}),
        ("ALL cluster", {"": 0, "operations": 8096}),
    ],
    "describe_quorum": [
        ("", {"": 31}),
        ("DESCRIBE cluster", {"": 0, "__cluster_metadata": 0}),
    ],
    "update_features": one({"": 31, "ALTER cluster": 95, "ALTER_CONFIGS cluster": 31}),
    "describe_acls": one({"": 31, "DESCRIBE cluster": 0, "ALTER cluster": 0}),
    "create_acls": one({"": 31, "ALTER cluster": 0, "DESCRIBE cluster": 31}),
    "delete_acls": one({"": 31, "ALTER cluster": 0}),
    "describe_configs": [
        ("", {"": 31, "known": 29, "missing": 29}),
        ("DESCRIBE_CONFIGS topic known", {"": 31, "known": 0, "missing": 29}),
        ("DESCRIBE_CONFIGS cluster", {"": 0, "known": 29, "missing": 29}),
        ("ALTER_CONFIGS topic *, ALTER_CONFIGS cluster", {"": 0, "known": 0, "missing": 3}),
        ("DESCRIBE topic *, DESCRIBE cluster", {"": 31, "known": 29, "missing": 29}),
    ],
    "alter_configs": [
        ("", {"known": 29, "missing": 29}),
        ("ALTER_CONFIGS topic known", {"known": 0, "missing": 29}),
        ("ALTER_CONFIGS topic *", {"known": 0, "missing": 3}),
        ("ALTER topic *, ALTER_CONFIGS cluster", {"known": 29, "missing": 29}),
    ],
    "incremental_alter_configs": [
        ("", {"": 31, "known": 29, "missing": 29}),
        ("ALTER_CONFIGS topic known", {"": 31, "known": 0, "missing": 29}),
        ("ALTER_CONFIGS cluster", {"": 0, "known": 29, "missing": 29}),
        ("ALTER_CONFIGS topic *, ALTER_CONFIGS cluster", {"": 0, "known": 0, "missing": 3}),
        ("ALTER topic *, ALTER cluster", {"": 31, "known": 29, "missing": 29}),
    ],
    "list_config_resources": one({"": 31, "DESCRIBE_CONFIGS cluster": 0, "DESCRIBE cluster": 31}),
    "describe_log_dirs": one({"": 31, "DESCRIBE cluster": 0}),
    "alter_replica_log_dirs": one({"": 31, "ALTER cluster": 57}, "missing"),
    "elect_leaders": [
        ("", {"": 31, "known": 31}),
        ("ALTER cluster", {"": 0, "known": 84}),
    ],
    "alter_partition_reassignments": [
        ("", {"": 31, "missing": 31}),
        ("ALTER cluster", {"": 0, "missing": 3}),
    ],
    "list_partition_reassignments": one({"": 31, "DESCRIBE cluster": 0}),
    "describe_client_quotas": [
        ("", {"": 31}),
        ("DESCRIBE_CONFIGS cluster", {"": 0}),
        ("ALTER_CONFIGS cluster", {"": 0}),
        ("DESCRIBE cluster", {"": 31}),
    ],
    "alter_client_quotas": [
        ("", {"": 31, "absent": 0}),
        ("ALTER_CONFIGS cluster", {"": 0, "absent": 0}),
        ("ALTER cluster", {"": 31, "absent": 0}),
    ],
    "describe_user_scram_credentials": [
        ("", {"": 31}),
        ("DESCRIBE cluster", {"": 0, "absent": 91}),
    ],
    "alter_user_scram_credentials": one({"": 31, "ALTER cluster": 91}, "absent"),
    "share_group_heartbeat": [
        ("", {"": 30}),
        ("READ group *", {"": 29}),
        ("DESCRIBE group *, READ topic *", {"": 30}),
        ("READ group share-?, DESCRIBE topic known", {"": 0}),
    ],
    "share_group_describe": [
        ("", {"share-?": 30}),
        ("READ topic *", {"share-?": 30}),
        ("DESCRIBE group share-?", {"share-?": 29}),
        ("DESCRIBE group share-?, DESCRIBE topic known", {"share-?": 0, "share-? operations": 256, "share-?/known": 0}),
        ("READ group *, READ topic *", {"share-?": 0, "share-? operations": 264, "share-?/known": 0}),
    ],
    "share_fetch": [
        ("", {"": 30}),
        ("READ topic *", {"": 30}),
        ("DESCRIBE group *, READ topic *", {"": 30}),
        ("READ group share-?", {"": 0, "#known": 29}),
        ("READ group share-?, DESCRIBE topic known", {"": 0, "#known": 29}),
        ("READ group share-?, READ topic known", {"": 0, "#known": 0}),
    ],
    "share_fetch_of_unknown_id": one({"READ group share-?, READ topic *": -1}),
    "share_acknowledge": [
        ("", {"": 30}),
        ("READ topic *", {"": 30}),
        ("DESCRIBE group *, READ topic *", {"": 30}),
        ("READ group share-?", {"": 0, "#known": 29}),
        ("READ group share-?, DESCRIBE topic known", {"": 0, "#known": 29}),
        ("READ group share-?, READ topic known", {"": 0, "#known": 0}),
    ],
    "share_acknowledge_of_unknown_id": one({"READ group share-?, READ topic *": -1}),
    **{
        api: [
            ("", {"#known": 31}),
            ("READ group *, READ topic *, DESCRIBE cluster", {"#known": 31}),
            ("ALTER cluster", {"#known": 31}),
            ("CLUSTER_ACTION cluster", {"#known": 0}),
        ]
        for api in (
            "initialize_share_group_state",
            "read_share_group_state",
            "write_share_group_state",
            "delete_share_group_state",
            "read_share_group_state_summary",
        )
    },
    "describe_share_group_offsets": [
        ("", {"share-?": 30}),
        ("DESCRIBE topic *", {"share-?": 30}),
        ("DESCRIBE group share-?", {"share-?": 0, "share-?/known": 29, "share-?/missing": 29}),
        ("DESCRIBE group share-?, DESCRIBE topic known", {"share-?": 0, "share-?/known": 0, "share-?/missing": 29}),
        ("READ group *, DESCRIBE topic *", {"share-?": 0, "share-?/known": 0, "share-?/missing": 0}),
    ],
    "describe_all_share_group_offsets": [
        ("", {"share-?": 30}),
        ("DESCRIBE group share-?", {"share-?": 0}),
        ("DESCRIBE group share-?, DESCRIBE topic known", {"share-?": 0, "share-?/known": 0}),
        ("DESCRIBE group share-?, READ topic *", {"share-?": 0, "share-?/known": 0}),
    ],
    "alter_share_group_offsets": [
        ("", {"": 30}),
        ("READ topic *", {"": 30}),
        ("DESCRIBE group *, READ topic *", {"": 30}),
        ("READ group share-?", {"": 0, "known": 29, "missing": 29}),
        ("READ group share-?, DESCRIBE topic *", {"": 0, "known": 29, "missing": 29}),
        ("READ group share-?, READ topic known", {"": 0, "known": 0, "missing": 29}),
        ("READ group share-?, READ topic *", {"": 0, "known": 0, "missing": 3}),
    ],
    "delete_share_group_offsets": [
        ("", {"": 30}),
        ("READ group *, READ topic *", {"": 30}),
        ("DELETE group share-?", {"": 0, "known": 29, "missing": 29}),
        ("DELETE group share-?, DESCRIBE topic *", {"": 0, "known": 29, "missing": 29}),
        ("DELETE group share-?, READ topic known", {"": 0, "known": 0, "missing": 29}),
        ("DELETE group share-?, READ topic *", {"": 0, "known": 0, "missing": 3}),
    ],
}
