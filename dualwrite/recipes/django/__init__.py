"""Django: `transaction.atomic()` changes the database and publishes to Kafka in one decision.

Enable it with two settings and an app:

    DATABASES = {"default": {"ENGINE": "dualwrite.recipes.django.postgresql", ...}}
    DUALWRITE = {"default": {"bootstrap_servers": "127.0.0.1:9092"}}
    INSTALLED_APPS = [..., "dualwrite.recipes.django"]

Then, inside `transaction.atomic()`:

    send("orders", key=str(order.id), value="lamp")

or, for each row of a model, `@publish("orders")` on its class.

Open `wrapper.py` first: it has the methods that replace those of Django's database backends. `postgresql/` and `mysql/`
hold the code for each driver, `transaction.py` the dual write of one transaction, by the steps of `recipes/core`, on
Django's own connection, `publishing.py` the signals of models, `pools.py` the leased transactional ids of the process,
and `forks.py` the connections that a forked child must not use.

Imports of its neighbours: `core`, `pool`, `psycopg`, `recovery`, `sql`, `sqlalchemy`.
"""

from dualwrite.recipes.django.publishing import publish
from dualwrite.recipes.django.sending import current_dual_write, pool_status, send

__all__ = ["current_dual_write", "pool_status", "publish", "send"]
