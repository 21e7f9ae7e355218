"""A Spark stream into a topic and a table, each order exactly once in both; starts its own broker and database.

    python -m examples.spark_stream

The query runs twice, and the second run continues where the first ended. `make demo-spark` kills such an application
again and again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink import ensure_java, register

TABLE: Final = "CREATE TABLE orders (id BIGINT PRIMARY KEY, item TEXT NOT NULL)"


def session() -> SparkSession:
    """Return a small local Spark session."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    register(spark)
    return spark


def write_orders(spark: SparkSession, directory: Path, bootstrap_servers: str, store_url: str) -> None:
    """Run the query until all incoming files are written."""
    orders = spark.readStream.schema("id BIGINT, item STRING").json(str(directory / "incoming"))
    query = (
        orders.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value", "id", "item")
        .writeStream.format("dualwrite-kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "orders")
        .option("sinkId", "orders")
        .option("commitStore.url", store_url)
        .option("dual.table", "orders")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def read_topic(bootstrap_servers: str) -> list[str]:
    """Return the values that a read_committed consumer sees, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe(["orders"])
    values: list[str] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        values.append((message.value() or b"").decode())
    consumer.close()
    return sorted(values)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as temporary,
        PostgresServer.start() as postgres,
        Emulator(topics={"orders": 1}) as kafka,
    ):
        directory = Path(temporary)
        (directory / "incoming").mkdir()
        store_url = postgres.url.render_as_string(hide_password=False)
        engine = sa.create_engine(postgres.url)
        with engine.begin() as connection:
            connection.execute(sa.text(TABLE))
        spark = session()
        for number, item in enumerate(["lamp", "chair"]):
            (directory / "incoming" / f"{number}.json").write_text(json.dumps({"id": number, "item": item}))
            write_orders(spark, directory, kafka.bootstrap_servers, store_url)
        spark.stop()
        with engine.connect() as connection:
            print("table:", [tuple(row) for row in connection.execute(sa.text("SELECT * FROM orders ORDER BY id"))])
        print("topic:", read_topic(kafka.bootstrap_servers))
        engine.dispose()


if __name__ == "__main__":
    main()
