"""The log of one partition: record batches, producer state, high watermark, last stable offset, storage.

Start with `partition_log.py` (append, markers) and `readable_log.py` (offsets, reads). `last_stable_offset.py` computes
the last stable offset and holds the aborted index. `producer_state.py` has the rules by which batches and markers of
producers are accepted, and `verification.py` KIP-890's guards. `record_batch.py` has the format. Below `PartitionLog`,
`segments.py` keeps the segments of one log, which come from a storage (it declares both): in memory
(`memory_segment.py`) or on disk (`disk_log.py`, `disk_segment.py`, `flusher.py`; a start: `disk_loading.py`,
`log_ends.py`, `recovery.py`). `cleaner.py` compacts.

Imports of its neighbours: none.
"""
