// A Kafka broker for tests: starts dualwrite's broker emulator, or uses one that runs, over its control port.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

const START_TIMEOUT_MS = 60_000;
const STOP_TIMEOUT_MS = 20_000;
const KEPT_OUTPUT = 8_000;

/** An error that the broker has answered; `code` is for programs, `known` lists the names that would have been valid. */
export class BrokerError extends Error {
  constructor(status, { code, message, known = [] }) {
    super(message);
    this.name = "BrokerError";
    this.status = status;
    this.code = code;
    this.known = known;
  }
}

/** Start a broker in a process of its own, which ends with this process at the latest. */
export async function startBroker(options = {}) {
  const { topics = {}, nodes = 1, clock = "system", config = {}, args = [], startTimeoutMs = START_TIMEOUT_MS } = options;
  const [program, ...first] = options.command ?? commandOfEnvironment();
  const all = [...first, "--control", "127.0.0.1:0", "--stop-with-stdin", "--nodes", String(nodes), "--clock", clock];
  for (const [name, partitions] of Object.entries(topics)) all.push("--topic", `${name}:${partitions}`);
  for (const [name, value] of Object.entries(config)) all.push("--config", `${name}=${value}`);
  const child = spawn(program, [...all, ...args], { stdio: ["pipe", "pipe", "pipe"] });
  const log = keepOutput(child.stderr);
  try {
    const [, controlUrl] = await firstLines(child, 2, startTimeoutMs, program, log);
    const broker = await connectBroker(controlUrl);
    broker._child = child;
    for (const each of handles(child)) each.unref(); // a test that forgets stop() must not keep its process from ending
    return broker;
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  }
}

/** Use a broker that runs, by the URL of its control port; stop() leaves it running. */
export async function connectBroker(controlUrl) {
  const broker = new Broker(controlUrl);
  broker.bootstrapServers = (await broker.request("GET", "/v1/health")).bootstrap_servers;
  return broker;
}

const handles = (child) => [child, child.stdin, child.stdout, child.stderr];

function commandOfEnvironment() {
  const given = process.env.DUALWRITE_BROKER_COMMAND;
  return given ? given.split(" ").filter(Boolean) : ["dualwrite", "broker"];
}

function keepOutput(stream) {
  const log = { text: "" };
  stream.setEncoding("utf8");
  stream.on("data", (data) => (log.text = (log.text + data).slice(-KEPT_OUTPUT)));
  return log;
}

function firstLines(child, count, timeoutMs, program, log) {
  return new Promise((resolve, reject) => {
    const lines = [];
    const failed = (why) => {
      clearTimeout(timer);
      reject(new Error(`the broker did not start: ${why}${log.text && `\n${log.text.trim()}`}`));
    };
    const timer = setTimeout(() => failed(`no address within ${timeoutMs} ms`), timeoutMs);
    child.once("error", (error) =>
      failed(
        error.code === "ENOENT"
          ? `there is no program ${program}; pip install 'dualwrite[emulator,cli]', or say in the option command or in DUALWRITE_BROKER_COMMAND how it is started`
          : error.message,
      ),
    );
    child.once("close", (code, signal) => failed(`${program} ended with ${signal ?? `status ${code}`}`));
    createInterface({ input: child.stdout }).on("line", (line) => {
      lines.push(line);
      if (lines.length !== count) return;
      clearTimeout(timer);
      resolve(lines);
    });
  });
}

class Broker {
  /** @internal the process that this one has started, if any */
  _child = null;

  constructor(controlUrl) {
    this.controlUrl = controlUrl.replace(/\/$/, "");
    this.bootstrapServers = "";
  }

  /** Any request of the control port: docs/emulator-control.md lists them. */
  async request(method, path, body) {
    const response = await fetch(this.controlUrl + path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const content = await response.json();
    if (!response.ok) throw new BrokerError(response.status, content.error);
    return content;
  }

  async createTopic(name, { partitions = 1, configs = null } = {}) {
    await this.request("POST", "/v1/topics", { name, partitions, configs });
  }

  /** The records of a topic as a consumer gets them; none of a topic that was never used. */
  async records(topic, { partition, offset, readCommitted = true, limit = 10_000 } = {}) {
    const query = new URLSearchParams({ encoding: "base64", limit: String(limit) });
    query.set("isolation", readCommitted ? "read_committed" : "read_uncommitted");
    if (partition !== undefined) query.set("partition", String(partition));
    if (offset !== undefined) query.set("offset", String(offset));
    const { records } = await this.request("GET", `/v1/topics/${encodeURIComponent(topic)}/records?${query}`);
    return records.map((record) => ({
      partition: record.partition,
      offset: record.offset,
      timestampMs: record.timestamp_ms,
      key: bytes(record.key),
      value: bytes(record.value),
      headers: record.headers.map(({ key, value }) => ({ key, value: bytes(value) })),
      transaction: record.transaction,
    }));
  }

  /** Put a fault in place: { api: "EndTxn", action: { type: "DropReply" } }. */
  async addFault(fault) {
    return new Fault(this, (await this.request("POST", "/v1/faults", fault)).fault_id);
  }

  /** Hold a pause point of the transaction coordinator, such as "before-marker". */
  async hold(point, selectors = {}) {
    return new Hold(this, (await this.request("POST", "/v1/holds", { point, ...selectors })).hold_id);
  }

  async now() {
    return (await this.request("GET", "/v1/clock")).now_ms;
  }

  /** Advance the broker's time; needs clock: "virtual". */
  async advanceClock(ms) {
    return (await this.request("POST", "/v1/clock/advance", { duration_ms: ms })).now_ms;
  }

  async transactions() {
    return (await this.request("GET", "/v1/transactions")).transactions;
  }

  /** For the next test: no records, faults, held points, open transactions and idle groups. */
  async reset() {
    await this.request("POST", "/v1/reset");
  }

  /** End the broker that was started; one that was connected to goes on. */
  async stop() {
    const child = this._child;
    this._child = null;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    for (const each of handles(child)) each.ref();
    const ended = once(child, "close");
    child.stdin.end();
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    await ended;
    clearTimeout(timer);
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.stop();
  }
}

class Fault {
  constructor(broker, id) {
    this.broker = broker;
    this.id = id;
    this.path = `/v1/faults/${id}`;
  }

  async state() {
    return this.broker.request("GET", this.path);
  }

  /** Wait until this many requests were hit, are held, or have unsent responses. */
  async wait({ hits, held, unsent, timeoutMs = 10_000 }) {
    const query = new URLSearchParams({ timeout_ms: String(timeoutMs) });
    for (const [name, value] of Object.entries({ hits, held, unsent })) if (value !== undefined) query.set(name, String(value));
    return this.broker.request("GET", `${this.path}/wait?${query}`);
  }

  async release() {
    return this.broker.request("POST", `${this.path}/release`);
  }

  async remove() {
    return this.broker.request("DELETE", this.path);
  }
}

class Hold {
  constructor(broker, id) {
    this.broker = broker;
    this.id = id;
    this.path = `/v1/holds/${id}`;
  }

  /** Wait until the point was reached this often. */
  async wait({ hits = 1, timeoutMs = 10_000 } = {}) {
    return this.broker.request("GET", `${this.path}/wait?hits=${hits}&timeout_ms=${timeoutMs}`);
  }

  async release() {
    return this.broker.request("POST", `${this.path}/release`);
  }
}

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));
