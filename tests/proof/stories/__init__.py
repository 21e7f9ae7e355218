"""Findings of the search, each as the test that `python -m tests.proof.replay --write-test` writes."""
