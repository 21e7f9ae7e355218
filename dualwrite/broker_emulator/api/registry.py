"""The APIs that a broker serves, and their versions.

The ApiVersions response is built from `APIS`. `FILES` names the file of each API, which is loaded at the first request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Final

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.messages.call import ApiFunctions
from dualwrite.broker_emulator.messages.schemas import versions_of
from dualwrite.broker_emulator.profiles import BEFORE_4_4, PULL_REQUESTS, RELEASES, Profile

FILES: Final[Mapping[str, tuple[int, ...]]] = {
    "produce": (0,),
    "fetch": (1,),
    "transactions": (22, 26, 65, 66, 61),
    "transaction_partitions": (24, 25, 27),
    "offset_commits": (8, 28),
    "group_offsets": (9, 47),
    "classic_groups": (11, 12, 13, 14),
    "groups": (15, 16, 42),
    "consumer_groups": (68, 69),
    "share_groups": (76, 77),
    "share_records": (78, 79),
    "share_states": (83, 84, 85, 86, 87),
    "share_group_offsets": (90, 91, 92),
    "acls": (29, 30, 31),
    "users": (48, 49, 50, 51),
    "connection": (18, 17, 36),
    "create_topics": (19, 37),
    "delete_topics": (20, 21),
    "configs": (33, 44),
    "describe_configs": (32, 74),
    "log_dirs": (35, 34),
    "replicas": (43, 45, 46),
    "log_offsets": (2, 23),
    "metadata": (3, 75),
    "cluster": (10, 60, 55, 57),
}
"""The API keys that each file serves."""

_FILE_OF: Final = {key: file for file, keys in FILES.items() for key in keys}


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API key as this broker serves it."""

    key: int
    schema_name: str
    min_version: int
    max_version: int
    is_abandonable: bool = False
    """Whether to cancel a waiting request when its client disconnects, since it changes nothing."""
    newest: Mapping[Profile, int] = field(default_factory=dict)
    """Newest version served under a profile, if not `max_version`."""
    newest_unstable: Mapping[Profile, int] = field(default_factory=dict)
    """Newest version served under a profile with `unstable.api.versions.enable`, if higher than `newest`."""
    advertised_min_version: int | None = None
    """Oldest version in the ApiVersions response, if it differs from the oldest version served."""

    @cached_property
    def functions(self) -> ApiFunctions:
        """The functions of the API's file, loaded at the first request: most brokers serve only a few of the APIs."""
        functions = vars(import_module(f"{__package__}.{_FILE_OF[self.key]}"))
        refuse = functions[f"refuse_{self.schema_name}"]
        of_partitions = functions.get(f"refuse_{self.schema_name}_partitions", refuse)
        return ApiFunctions(functions[f"handle_{self.schema_name}"], refuse, of_partitions)

    def max_version_for(self, config: BrokerConfig) -> int:
        """Return the newest version that a broker with `config` serves."""
        if config.profile is Profile.REDPANDA:
            return _IN_REDPANDA.get(self.key, -1)
        stable = self.newest.get(config.profile, self.max_version)
        return self.newest_unstable.get(config.profile, stable) if config.unstable_api_versions_enable else stable


def by_key(*apis: Api) -> Mapping[int, Api]:
    """Return the APIs by key. Raises ValueError for a duplicate key, and for versions without a schema."""
    found: dict[int, Api] = {}
    for api in apis:
        if api.key in found:
            raise ValueError(f"API key {api.key} is listed twice")
        for version in (api.min_version, api.max_version):
            if version not in versions_of(api.schema_name):
                raise ValueError(f"{api.schema_name} has no version {version}")
        found[api.key] = api
    return found


PRODUCE: Final = 0
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

_IN_REDPANDA: Final[Mapping[int, int]] = {
    **{0: 7, 1: 11, 2: 4, 3: 8, 8: 8, 9: 7, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 4, 17: 1, 18: 3},
    **{19: 6, 20: 5, 21: 2, 22: 3, 23: 4, 24: 3, 25: 1, 26: 3, 28: 3, 29: 2, 30: 2, 31: 2, 32: 4, 33: 2, 35: 2},
    **{36: 2, 37: 3, 42: 2, 44: 1, 45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 61: 0, 65: 0, 66: 0},
}
"""The newest version of each API that Redpanda serves, by key (kafka/server/handlers/*.h)."""

_NOT_IN_3_9: Final[Mapping[Profile, int]] = {Profile.KAFKA_3_9: -1}
"""No version: the API is not in the ApiVersions response either."""

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
    Api(key=18, schema_name="api_versions", min_version=0, max_version=5, newest=dict.fromkeys(BEFORE_4_4, 4)),
    Api(key=19, schema_name="create_topics", min_version=2, max_version=7),
    Api(key=20, schema_name="delete_topics", min_version=1, max_version=6),
    Api(key=21, schema_name="delete_records", min_version=0, max_version=2),
    Api(
        key=22,
        schema_name="init_producer_id",
        min_version=0,
        max_version=6,
        newest=dict.fromkeys((*PULL_REQUESTS, *RELEASES), 5),  # neither pull request makes v6 stable
        newest_unstable=dict.fromkeys((*PULL_REQUESTS, Profile.KAFKA_4_4, Profile.KAFKA_4_3), 6),
    ),
    Api(key=23, schema_name="offset_for_leader_epoch", min_version=2, max_version=4),
    Api(key=24, schema_name="add_partitions_to_txn", min_version=0, max_version=5),
    Api(key=25, schema_name="add_offsets_to_txn", min_version=0, max_version=4),
    Api(key=26, schema_name="end_txn", min_version=0, max_version=5, newest={Profile.KAFKA_3_9: 4}),
    Api(key=27, schema_name="write_txn_markers", min_version=1, max_version=2, newest={Profile.KAFKA_3_9: 1}),
    Api(
        key=28,
        schema_name="txn_offset_commit",
        min_version=0,
        max_version=6,
        newest={Profile.KAFKA_4_3: 5, Profile.KAFKA_3_9: 4},
    ),
    Api(key=29, schema_name="describe_acls", min_version=1, max_version=3),
    Api(key=30, schema_name="create_acls", min_version=1, max_version=3),
    Api(key=31, schema_name="delete_acls", min_version=1, max_version=3),
    Api(key=32, schema_name="describe_configs", min_version=1, max_version=4),
    Api(key=33, schema_name="alter_configs", min_version=0, max_version=2),
    Api(key=34, schema_name="alter_replica_log_dirs", min_version=1, max_version=2),
    Api(key=35, schema_name="describe_log_dirs", min_version=1, max_version=5, newest={Profile.KAFKA_3_9: 4}),
    Api(key=36, schema_name="sasl_authenticate", min_version=0, max_version=2),
    Api(key=37, schema_name="create_partitions", min_version=0, max_version=3),
    Api(key=42, schema_name="delete_groups", min_version=0, max_version=3, newest=dict.fromkeys(BEFORE_4_4, 2)),
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
    Api(key=76, schema_name="share_group_heartbeat", min_version=1, max_version=1, newest=_NOT_IN_3_9),
    Api(key=77, schema_name="share_group_describe", min_version=1, max_version=1, newest=_NOT_IN_3_9),
    Api(key=78, schema_name="share_fetch", min_version=1, max_version=2, newest=_NOT_IN_3_9, is_abandonable=True),
    Api(key=79, schema_name="share_acknowledge", min_version=1, max_version=2, newest=_NOT_IN_3_9),
    Api(key=83, schema_name="initialize_share_group_state", min_version=0, max_version=0, newest=_NOT_IN_3_9),
    Api(key=84, schema_name="read_share_group_state", min_version=0, max_version=0, newest=_NOT_IN_3_9),
    Api(key=85, schema_name="write_share_group_state", min_version=0, max_version=1, newest=_NOT_IN_3_9),
    Api(key=86, schema_name="delete_share_group_state", min_version=0, max_version=0, newest=_NOT_IN_3_9),
    Api(key=87, schema_name="read_share_group_state_summary", min_version=0, max_version=1, newest=_NOT_IN_3_9),
    Api(key=90, schema_name="describe_share_group_offsets", min_version=0, max_version=1, newest=_NOT_IN_3_9),
    Api(key=91, schema_name="alter_share_group_offsets", min_version=0, max_version=0, newest=_NOT_IN_3_9),
    Api(key=92, schema_name="delete_share_group_offsets", min_version=0, max_version=0, newest=_NOT_IN_3_9),
)
