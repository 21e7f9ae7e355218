"""Kafka's settings of brokers, topics, groups and client metrics: their tables, their values, and how they change.

Open `setting.py` first, which defines a setting. `broker_settings.py`, `security_settings.py`, `resource_settings.py`
and `kafka_3_9.py` are Kafka's tables; `differences.py` has the differences here. `reading.py` parses the settings of a
broker, `effective.py` looks values up, and `description.py` and `alteration.py` serve DescribeConfigs and AlterConfigs;
`cluster/config_changes.py` applies alterations.

Imports of its neighbours: `log`, `security`, `storage`.
"""
