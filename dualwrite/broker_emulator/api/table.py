"""Which APIs a broker serves, and in which versions: what ApiVersions answers is built from here.

What each of them does is in the file that has its key and name, which is loaded when its first request comes.
"""

from __future__ import annotations

from typing import Final

from dualwrite.broker_emulator.api.registry import Api, by_key
from dualwrite.broker_emulator.config import Profile

PRODUCE: Final = 0
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

APIS = by_key(
    Api(
        key=0,
        schema_name="produce",
        min_version=3,
        max_version=13,
        newest={Profile.KAFKA_3_9: 11},
        advertised_min_version=0,
    ),
    Api(key=1, schema_name="fetch", min_version=4, max_version=18, newest={Profile.KAFKA_3_9: 17}, is_abandonable=True),
    Api(key=2, schema_name="list_offsets", min_version=1, max_version=11, newest={Profile.KAFKA_3_9: 9}),
    Api(key=3, schema_name="metadata", min_version=0, max_version=13, newest={Profile.KAFKA_3_9: 12}),
    Api(key=8, schema_name="offset_commit", min_version=2, max_version=10, newest={Profile.KAFKA_3_9: 9}),
    Api(key=9, schema_name="offset_fetch", min_version=1, max_version=10, newest={Profile.KAFKA_3_9: 9}),
    Api(key=10, schema_name="find_coordinator", min_version=0, max_version=6),
    Api(key=11, schema_name="join_group", min_version=0, max_version=9),
    Api(key=12, schema_name="heartbeat", min_version=0, max_version=4),
    Api(key=13, schema_name="leave_group", min_version=0, max_version=5),
    Api(key=14, schema_name="sync_group", min_version=0, max_version=5),
    Api(key=15, schema_name="describe_groups", min_version=0, max_version=6, newest={Profile.KAFKA_3_9: 5}),
    Api(key=16, schema_name="list_groups", min_version=0, max_version=5),
    Api(key=17, schema_name="sasl_handshake", min_version=0, max_version=1),
    Api(key=18, schema_name="api_versions", min_version=0, max_version=4),
    Api(key=19, schema_name="create_topics", min_version=2, max_version=7),
    Api(key=20, schema_name="delete_topics", min_version=1, max_version=6),
    Api(key=21, schema_name="delete_records", min_version=0, max_version=2),
    Api(
        key=22,
        schema_name="init_producer_id",
        min_version=0,
        max_version=6,
        newest={Profile.KAFKA_4_3: 5, Profile.KAFKA_3_9: 5},
        newest_unstable={Profile.KAFKA_4_3: 6},
    ),
    Api(key=23, schema_name="offset_for_leader_epoch", min_version=2, max_version=4),
    Api(key=24, schema_name="add_partitions_to_txn", min_version=0, max_version=5),
    Api(key=25, schema_name="add_offsets_to_txn", min_version=0, max_version=4),
    Api(key=26, schema_name="end_txn", min_version=0, max_version=5, newest={Profile.KAFKA_3_9: 4}),
    Api(key=27, schema_name="write_txn_markers", min_version=1, max_version=2, newest={Profile.KAFKA_3_9: 1}),
    Api(key=28, schema_name="txn_offset_commit", min_version=0, max_version=5, newest={Profile.KAFKA_3_9: 4}),
    Api(key=29, schema_name="describe_acls", min_version=1, max_version=3),
    Api(key=30, schema_name="create_acls", min_version=1, max_version=3),
    Api(key=31, schema_name="delete_acls", min_version=1, max_version=3),
    Api(key=32, schema_name="describe_configs", min_version=1, max_version=4),
    Api(key=33, schema_name="alter_configs", min_version=0, max_version=2),
    Api(key=34, schema_name="alter_replica_log_dirs", min_version=1, max_version=2),
    Api(key=35, schema_name="describe_log_dirs", min_version=1, max_version=5, newest={Profile.KAFKA_3_9: 4}),
    Api(key=36, schema_name="sasl_authenticate", min_version=0, max_version=2),
    Api(key=37, schema_name="create_partitions", min_version=0, max_version=3),
    Api(key=42, schema_name="delete_groups", min_version=0, max_version=2),
    Api(key=43, schema_name="elect_leaders", min_version=0, max_version=2),
    Api(key=44, schema_name="incremental_alter_configs", min_version=0, max_version=1),
    Api(
        key=45, schema_name="alter_partition_reassignments", min_version=0, max_version=1, newest={Profile.KAFKA_3_9: 0}
    ),
    Api(key=46, schema_name="list_partition_reassignments", min_version=0, max_version=0),
    Api(key=47, schema_name="offset_delete", min_version=0, max_version=0),
    Api(key=48, schema_name="describe_client_quotas", min_version=0, max_version=1),
    Api(key=49, schema_name="alter_client_quotas", min_version=0, max_version=1),
    Api(key=50, schema_name="describe_user_scram_credentials", min_version=0, max_version=0),
    Api(key=51, schema_name="alter_user_scram_credentials", min_version=0, max_version=0),
    Api(key=55, schema_name="describe_quorum", min_version=0, max_version=2),
    Api(key=57, schema_name="update_features", min_version=0, max_version=2, newest={Profile.KAFKA_3_9: 1}),
    Api(key=60, schema_name="describe_cluster", min_version=0, max_version=2, newest={Profile.KAFKA_3_9: 1}),
    Api(key=61, schema_name="describe_producers", min_version=0, max_version=0),
    Api(key=65, schema_name="describe_transactions", min_version=0, max_version=0),
    Api(key=66, schema_name="list_transactions", min_version=0, max_version=2, newest={Profile.KAFKA_3_9: 1}),
    Api(key=68, schema_name="consumer_group_heartbeat", min_version=0, max_version=1, newest={Profile.KAFKA_3_9: 0}),
    Api(key=69, schema_name="consumer_group_describe", min_version=0, max_version=1, newest={Profile.KAFKA_3_9: 0}),
    Api(key=74, schema_name="list_config_resources", min_version=0, max_version=1, newest={Profile.KAFKA_3_9: 0}),
    Api(key=75, schema_name="describe_topic_partitions", min_version=0, max_version=0),
)
