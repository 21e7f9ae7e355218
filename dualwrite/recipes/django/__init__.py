"""Django: `transaction.atomic()` changes the database and publishes to Kafka in one decision.

Two settings and an app make it so:

    DATABASES = {"default": {"ENGINE": "dualwrite.recipes.django.postgresql", ...}}
    DUALWRITE = {"default": {"bootstrap_servers": "127.0.0.1:9092"}}
    INSTALLED_APPS = [..., "dualwrite.recipes.django"]

Then, inside `transaction.atomic()`:

    send("orders", key=str(order.id), value="lamp")

`wrapper.py` is what the database backends add to Django's, and `postgresql/` and `mysql/` what depends on the driver;
`transaction.py` is the dual write of one of their transactions, by the steps of `recipes/core`, on the connection that
Django has; `pools.py` the leased transactional ids of the process, and `forks.py` what its children must not use. Open
`wrapper.py` first.
"""

from dualwrite.recipes.django.sending import current_dual_write, pool_status, send

__all__ = ["current_dual_write", "pool_status", "send"]
