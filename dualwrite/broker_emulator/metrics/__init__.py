"""Metrics of the emulator: counted on the path of requests, collected on demand.

Open `snapshot.py` first: it defines the metrics and collects them. `counters.py` is updated by every request, and
`prometheus.py` renders a snapshot as text. Only `snapshot.py` reads the cluster.

Imports of its neighbours: `cluster`, `groups`, `transactions`.
"""
