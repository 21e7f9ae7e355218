"""A partition: batches, producer state, last stable offset, aborted index."""
