"""Metrics of the emulator: collected on demand, from the counters on the path of requests.

Open `snapshot.py` first: it defines the metrics and collects them. `prometheus.py` renders a snapshot as text.

Imports of its neighbours: `cluster`, `groups`, `topics`, `transactions`.
"""
