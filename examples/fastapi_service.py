"""An HTTP service whose orders are in a table and in a topic, or in neither: `python -m examples.fastapi_service`.

    $ curl -X PUT localhost:8000/orders/1 -H 'content-type: application/json' -d '{"item": "lamp"}'
    $ curl localhost:8000/health

Each process has a pool of transactional ids; any number of processes may share a database. One that is killed leaves
something that the others complete. The caller chooses the key of an order, so it may repeat a request whose answer it
has not got: there is never a second order, nor a second event.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import DualWriteError, OutcomeUnknown
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriterPool

TOPIC = "orders"


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class OrderIn(BaseModel):
    """What a caller sends."""

    item: str


@dataclass(frozen=True)
class Shop:
    """What requests need."""

    engine: AsyncEngine
    pool: AsyncDualWriterPool

    async def place(self, order: Order) -> bool:
        """Whether the order is new. Commits and publishes it, atomically."""
        try:
            async with self.pool.transaction() as tx:
                tx.session.add(order)
                await tx.session.flush()
                tx.send(TOPIC, key=str(order.id), value=order.item)
        except IntegrityError:
            return False
        return True

    async def find(self, order_id: int) -> Order | None:
        async with AsyncSession(self.engine) as session:
            return await session.get(Order, order_id)


def create_app(database_url: str, bootstrap_servers: str, **pool_settings: Any) -> FastAPI:
    """The service on a database that SQLAlchemy awaits, as postgresql+psycopg://... or postgresql+asyncpg://..."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = create_async_engine(database_url, pool_pre_ping=True)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncDualWriterPool(
            engine, prefix="shop", bootstrap_servers=bootstrap_servers, **pool_settings
        ) as pool:
            await pool.recover()  # what dead processes left, before the first request
            app.state.shop = Shop(engine, pool)
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.add_exception_handler(DualWriteError, not_written)
    app.add_api_route("/orders/{order_id}", put_order, methods=["PUT"])
    app.add_api_route("/orders/{order_id}", get_order, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    return app


async def put_order(order_id: int, order: OrderIn, request: Request, response: Response) -> dict[str, Any]:
    shop: Shop = request.app.state.shop
    is_new = await shop.place(Order(id=order_id, item=order.item))
    if not is_new:
        found = await shop.find(order_id)
        if found is None or found.item != order.item:
            raise HTTPException(409, f"order {order_id} is another one")
    response.status_code = 201 if is_new else 200
    return {"id": order_id, "item": order.item}


async def get_order(order_id: int, request: Request) -> dict[str, Any]:
    shop: Shop = request.app.state.shop
    order = await shop.find(order_id)
    if order is None:
        raise HTTPException(404, f"there is no order {order_id}")
    return {"id": order.id, "item": order.item}


async def health(request: Request, response: Response) -> dict[str, Any]:
    """`in_doubt` names the ids whose last dual write Kafka has not confirmed yet: no harm, but readers wait for it."""
    shop: Shop = request.app.state.shop
    status = shop.pool.status
    database = "ok"
    try:
        async with shop.engine.connect() as connection:
            await connection.execute(sa.select(1))
    except (SQLAlchemyError, OSError) as error:
        database = f"{type(error).__name__}"
        response.status_code = 503
    return {
        "database": database,
        "in_doubt": list(status.set_aside),
        "last_error": status.last_background_error,
        "writing": status.in_use,
        "waiting": status.waiting,
    }


async def not_written(request: Request, error: Exception) -> JSONResponse:
    """503: the same request may be sent again, whether or not this one has been carried out."""
    unknown = isinstance(error, OutcomeUnknown)
    detail = "nobody knows yet whether this was written" if unknown else "this was not written"
    return JSONResponse({"detail": f"{detail}: {error}"}, status_code=503, headers={"Retry-After": "1"})


@contextmanager
def servers(database_url: str | None, bootstrap_servers: str | None) -> Iterator[tuple[str, str]]:
    """Those that were named, or a database and a broker of its own."""
    if database_url is not None and bootstrap_servers is not None:
        yield database_url, bootstrap_servers
        return
    with tempfile.TemporaryDirectory() as directory, Emulator(topics={TOPIC: 1}) as kafka:
        yield f"sqlite+aiosqlite:///{directory}/shop.db", kafka.bootstrap_servers


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders by HTTP, to a table and to a topic.")
    parser.add_argument("--database-url", help="default: SQLite in a temporary directory, and a broker of its own")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free; default: %(default)s")
    parser.add_argument("--lease-ms", type=int, default=15_000, help="how soon others complete what this one leaves")
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
