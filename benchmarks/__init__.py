"""Comparisons with peers, side by side in one run. They print; they never fail on a number."""
