"""From what `send()` and `send_batch()` are given to record batches, and from a broker's answer to futures.

Open first: `accumulator.py`.
"""
