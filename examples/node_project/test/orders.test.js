import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import { BrokerError, connectBroker, startBroker } from "dualwrite-broker";
import { Kafka, logLevel } from "kafkajs";

let broker;

before(async () => {
  broker = await startBroker({ topics: { orders: 1 }, clock: "virtual", config: { "num.partitions": 2 } });
});

beforeEach(() => broker.reset());

after(() => broker.stop());

async function inTransaction(work, transactionalId) {
  const kafka = new Kafka({ brokers: [broker.bootstrapServers], logLevel: logLevel.NOTHING });
  const producer = kafka.producer({ transactionalId, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  try {
    const transaction = await producer.transaction();
    await work(transaction);
  } finally {
    await producer.disconnect();
  }
}

const values = async (options) => (await broker.records("orders", options)).map((record) => record.value.toString());

test("an order is published once it is committed", async () => {
  await inTransaction(async (transaction) => {
    await transaction.send({ topic: "orders", messages: [{ key: "7", value: "lamp", headers: { by: "shop" } }] });
    assert.deepEqual(await values(), []);
    assert.deepEqual(await values({ readCommitted: false }), ["lamp"]);
    await transaction.commit();
  }, "shop");
  const [record] = await broker.records("orders", { partition: 0, offset: 0 });
  assert.equal(record.key.toString(), "7");
  assert.equal(record.headers[0].value.toString(), "shop");
  assert.equal(record.transaction, "committed");
});

test("tests see nothing of each other", async () => {
  assert.deepEqual(await values({ readCommitted: false }), []);
  assert.deepEqual(await broker.records("never-used"), []);
});

test("a commit is held, and seen by readers after its release", async () => {
  const held = await broker.addFault({ api: "EndTxn", action: { type: "Hold" } });
  const sent = inTransaction(async (transaction) => {
    await transaction.send({ topic: "orders", messages: [{ value: "shade" }] });
    await transaction.commit();
  }, "held");
  await held.wait({ held: 1 });
  assert.deepEqual(await values(), []);
  await held.release();
  await sent;
  assert.deepEqual(await values(), ["shade"]);
  assert.equal((await held.state()).hits, 1);
});

test("time passes when the test says so, and an abandoned transaction is aborted", async () => {
  const hold = await broker.hold("before-marker");
  await inTransaction(async (transaction) => {
    await transaction.send({ topic: "orders", messages: [{ value: "never" }] });
    const before = await broker.now();
    assert.equal(await broker.advanceClock(70_000), before + 70_000);
    await hold.wait();
  }, "abandoned");
  const [{ transaction }] = await broker.records("orders", { readCommitted: false });
  assert.equal(transaction, "open");
  await hold.release();
  while ((await broker.transactions()).some((each) => each.is_open)); // the broker writes markers in its own time
  assert.deepEqual(await values(), []);
  assert.equal((await broker.records("orders", { readCommitted: false }))[0].transaction, "aborted");
});

test("a mistake is an error that says what would be right", async () => {
  await assert.rejects(broker.addFault({ api: "EndTx" }), (error) => error instanceof BrokerError && /EndTxn/.test(error.message));
  await assert.rejects(startBroker({ command: ["no-such-program"] }), /there is no program no-such-program.*pip install/);
  await assert.rejects(startBroker({ config: { "num.partitions": 0 } }), /num\.partitions/);
});

test("a broker that runs can be used too", async () => {
  const other = await connectBroker(broker.controlUrl);
  assert.equal(other.bootstrapServers, broker.bootstrapServers);
  await other.createTopic("more", { partitions: 3 });
  await other.stop();
  assert.deepEqual(await broker.transactions(), await other.transactions());
});
