"""Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612): set, stored, measured and enforced.

Open `client_quotas.py` first: the entities of quotas, the valid quotas, and the current ones. `enforcement.py` measures
clients against their quotas and computes rates; the server then mutes connections.

Imports of its neighbours: `messages`, `storage`.
"""
