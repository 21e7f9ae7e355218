"""The `dualwrite` command: one file per command, and the options and output that they share.

May import the admin client, the recipes and, in `spark.py`, `spark_sink`; nothing else imports it. Open first:
`root.py`.

Exit codes of every command: 0 success; 1 the command worked, but found a fault, left work undone, or was refused;
2 wrong usage, or a cluster or database that cannot be reached.
"""
