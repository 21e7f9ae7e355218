"""Servers and programs that this project's own tests fetch, install and start: Apache Kafka, databases, a browser.

Nothing here is in the wheel, and nothing in the wheel imports it. It may import `dualwrite.testing`, but not the tests.
Each server is fetched once (`maven.py`, `debian_packages.py`) and kept in `cache.py`'s directory. Open first:
`apache_kafka.py`.
"""
