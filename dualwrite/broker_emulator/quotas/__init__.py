"""Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612): set, kept, measured and enforced.

Open `client_quotas.py` first: what a quota is set for, which can be set, and which are. `enforcement.py` measures
clients against their quotas and computes rates; the server then mutes connections.
May import `storage/` and `config`, and nothing of `api/` or `cluster/`.
"""
