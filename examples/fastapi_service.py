"""An HTTP service that writes each order to a table and to a topic, or to neither.

    python -m examples.fastapi_service

    $ curl -X PUT localhost:8000/orders/1 -H 'content-type: application/json' -d '{"item": "lamp"}'
    $ curl localhost:8000/health

Each process has a pool of transactional ids; any number of processes may share a database. If a process is killed, the
others complete its open transactions. The client chooses the id of an order, so it may repeat a request whose response
it did not get: there is never a second order, nor a second event.
"""

from __future__ import annotations

import argparse
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import DualWriteError
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter

TOPIC = "orders"

_log = logging.getLogger(__name__)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class OrderIn(BaseModel):
    """The body of a request."""

    item: str


@dataclass(frozen=True)
class Shop:
    """The resources that requests share."""

    engine: AsyncEngine
    pool: AsyncDualWriter

    async def place(self, order: Order) -> bool:
        """Commit and publish the order, atomically; return False if an order with its id exists."""
        try:
            async with self.pool.transaction() as tx:
                tx.session.add(order)
                await tx.session.flush()
                tx.send(TOPIC, key=str(order.id), value=order.item)
        except IntegrityError:
            return False
        return True

    async def has_database(self) -> bool:
        """Return whether a query has a result."""
        try:
            async with self.engine.connect() as connection:
                await connection.execute(sa.select(1))
        except (SQLAlchemyError, OSError) as error:
            _log.warning("the database does not answer: %s", error)
            return False
        return True

    async def find(self, order_id: int) -> Order | None:
        async with AsyncSession(self.engine) as session:
            return await session.get(Order, order_id)


def create_app(database_url: str, bootstrap_servers: str, **pool_settings: Any) -> FastAPI:
    """Return the service, for a URL with an asyncio driver: postgresql+psycopg://... or postgresql+asyncpg://..."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = create_async_engine(database_url, pool_pre_ping=True)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncDualWriter(engine, prefix="shop", bootstrap_servers=bootstrap_servers, **pool_settings) as pool:
            await recover(pool)
            app.state.shop = Shop(engine, pool)
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.add_exception_handler(DualWriteError, failed)
    app.add_api_route("/orders/{order_id}", put_order, methods=["PUT"])
    app.add_api_route("/orders/{order_id}", get_order, methods=["GET"])
    app.add_api_route("/live", live, methods=["GET"])
    app.add_api_route("/ready", ready, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    return app


async def recover(pool: AsyncDualWriter) -> None:
    """Complete the transactions of dead processes, before the first request.

    A process that is frozen in the middle of a dual write keeps its row locked, and a broker may be away: that is no
    reason not to start, because the pool tries again in the background.
    """
    try:
        await pool.recover()
    except DualWriteError as error:
        _log.warning("something is left open, and will be completed in the background: %s", error)


def shop_of(request: Request) -> Shop:
    """Return the shop that the lifespan has made."""
    shop: Shop = request.app.state.shop
    return shop


TheShop = Annotated[Shop, Depends(shop_of)]


async def put_order(order_id: int, order: OrderIn, shop: TheShop, response: Response) -> dict[str, Any]:
    is_new = await shop.place(Order(id=order_id, item=order.item))
    if not is_new:
        found = await shop.find(order_id)
        if found is None or found.item != order.item:
            raise HTTPException(409, f"there is another order {order_id}")
    response.status_code = 201 if is_new else 200
    return {"id": order_id, "item": order.item}


async def get_order(order_id: int, shop: TheShop) -> dict[str, Any]:
    order = await shop.find(order_id)
    if order is None:
        raise HTTPException(404, f"there is no order {order_id}")
    return {"id": order.id, "item": order.item}


async def live() -> dict[str, str]:
    """Respond: a process that still responds need not be restarted."""
    return {"status": "ok"}


async def ready(shop: TheShop, response: Response) -> dict[str, str]:
    """Respond with 503 while orders would be refused. Transactions in doubt do not stop new orders."""
    kafka = shop.pool.status.problem is None
    database = await shop.has_database()
    if not (database and kafka):
        response.status_code = 503
    return {"database": shown(database), "kafka": shown(kafka)}


def shown(is_there: bool) -> str:
    """Return the word for a response. Details, which name addresses, are in the log."""
    return "ok" if is_there else "away"


async def health(shop: TheShop, response: Response) -> dict[str, Any]:
    """Report the health; `in_doubt` counts ids whose last dual write Kafka has not confirmed yet, so readers wait."""
    status = shop.pool.status
    database = await shop.has_database()
    if not database:
        response.status_code = 503
    return {
        "database": shown(database),
        "in_doubt": len(status.set_aside),
        "writing": status.in_use,
        "waiting": status.waiting,
    }


async def failed(request: Request, error: Exception) -> JSONResponse:
    """Respond whether the order was written. The error itself, which names ids and addresses, is for the log.

    503: the client may repeat the request, which finds the order if it was written meanwhile. 500: the order is
    written, and its record is lost, which an operator has to mend.
    """
    outcome = outcome_of(error)
    _log.error("%s %s has failed: %s", request.method, request.url.path, outcome, exc_info=error)
    if outcome.is_decided:
        return JSONResponse({"detail": "this was written, but not announced; do not repeat it"}, status_code=500)
    is_certain = outcome is Outcome.ROLLED_BACK
    detail = "this was not written" if is_certain else "it is not known yet whether this was written"
    return JSONResponse({"detail": detail}, status_code=503, headers={"Retry-After": "1"})


@contextmanager
def servers(
    database_url: str | None, bootstrap_servers: str | None, topics: Iterable[str] = (TOPIC,)
) -> Iterator[tuple[str, str]]:
    """Yield the URL and address that were given, or those of a temporary database and broker."""
    if database_url is not None and bootstrap_servers is not None:
        yield database_url, bootstrap_servers
        return
    with tempfile.TemporaryDirectory() as directory, Emulator(topics=dict.fromkeys(topics, 1)) as kafka:
        yield f"sqlite+aiosqlite:///{directory}/shop.db", kafka.bootstrap_servers


def main() -> None:
    parser = argparse.ArgumentParser(description="Take orders by HTTP, and write each to a table and to a topic.")
    parser.add_argument("--database-url", help="default: SQLite in a temporary directory, and a temporary broker")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port; default: %(default)s")
    parser.add_argument("--lease-ms", type=int, default=15_000, help="after which others take over this one's ids")
    arguments = parser.parse_args()
    with (
        servers(arguments.database_url, arguments.bootstrap_servers) as (database_url, bootstrap_servers),
        socket.create_server(("127.0.0.1", arguments.port)) as listener,
    ):
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        app = create_app(database_url, bootstrap_servers, lease_ms=arguments.lease_ms)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
