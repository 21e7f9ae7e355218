"""Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612): set, kept, measured and enforced.

Open `client_quotas.py` first: which quotas can be set, and which are. `entity.py` defines what a quota is set for,
`window.py` computes rates, `enforcement.py` measures clients against their quotas; the server then mutes connections.
May import `storage/` and `config`, and nothing of `api/` or `cluster/`.
"""
