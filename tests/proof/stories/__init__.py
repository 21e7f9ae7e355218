"""What the search has found wrong, each as the test that `python -m tests.proof.replay --write-test` writes."""
