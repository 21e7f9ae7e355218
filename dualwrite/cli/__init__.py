"""The `dualwrite` command: one file per command, and what they share.

Exit codes of every command: 0 all is well; 1 it worked, and something is left, wrong, or was refused; 2 wrong usage,
or a cluster or database that cannot be reached.
"""
