"""Benchmarks that compare dualwrite with its peers in one run. They print results and never fail because of them."""
