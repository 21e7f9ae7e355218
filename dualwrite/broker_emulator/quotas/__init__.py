"""Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612): what is set, and what it makes of rates.

`entity.py` says whom a quota is for, `rules.py` what can be set, `filters.py` what is described, `window.py` counts,
`client_quotas.py` keeps what is set, `enforcement.py` measures against it, and the server mutes connections by that.
"""
