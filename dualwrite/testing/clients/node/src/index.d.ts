export interface BrokerOptions {
  /** Numbers of partitions by topic; other topics are created at their first use. */
  topics?: Record<string, number>;
  nodes?: number;
  /** "virtual" stands still until advanceClock(). */
  clock?: "system" | "virtual";
  /** Settings by Kafka's names. */
  config?: Record<string, string | number | boolean>;
  /** How the emulator is started; by default DUALWRITE_BROKER_COMMAND, or ["dualwrite", "broker"]. */
  command?: string[];
  /** More arguments of `dualwrite broker`. */
  args?: string[];
  startTimeoutMs?: number;
}

export interface Action {
  type:
    | "Error" | "PartitionError" | "Delay" | "Hold" | "HoldReply" | "DropRequest" | "DropReply" | "CloseBefore"
    | "CloseAfter" | "CrashBefore" | "CrashAfter" | "Duplicate" | "Reorder";
  code?: string | number;
  duration_ms?: number;
  after_requests?: number;
  on_release?: boolean;
}

export interface Selectors {
  transactional_id?: string;
  topic?: string;
  partition?: number;
  node?: number;
}

export interface NewFault extends Selectors {
  /** What happens; without it requests are only counted. */
  action?: Action;
  api?: string | number;
  point?: string;
  client_id?: string;
  group?: string;
  /** Values that fields of the request must have, in snake case. */
  request?: Record<string, unknown>;
  /** 1 by default; null: every request. */
  count?: number | null;
  skip?: number;
}

export interface FaultState {
  fault_id: number;
  hits: number;
  held: number;
  unsent: number;
  is_in_place: boolean;
}

export interface HoldState {
  hold_id: number;
  point: string;
  hits: number;
  waiting: number;
}

export interface Fault {
  readonly id: number;
  state(): Promise<FaultState>;
  wait(until: { hits?: number; held?: number; unsent?: number; timeoutMs?: number }): Promise<FaultState>;
  release(): Promise<FaultState>;
  remove(): Promise<FaultState>;
}

export interface Hold {
  readonly id: number;
  wait(until?: { hits?: number; timeoutMs?: number }): Promise<HoldState>;
  release(): Promise<HoldState>;
}

export interface BrokerRecord {
  partition: number;
  offset: number;
  timestampMs: number;
  key: Buffer | null;
  value: Buffer | null;
  headers: { key: string; value: Buffer | null }[];
  transaction: "open" | "committed" | "aborted" | null;
}

export interface RecordQuery {
  partition?: number;
  /** The first offset; needs a partition. */
  offset?: number;
  /** true by default, as a consumer with isolation.level=read_committed. */
  readCommitted?: boolean;
  limit?: number;
}

export interface Broker extends AsyncDisposable {
  readonly bootstrapServers: string;
  readonly controlUrl: string;
  createTopic(name: string, options?: { partitions?: number; configs?: Record<string, string> | null }): Promise<void>;
  records(topic: string, query?: RecordQuery): Promise<BrokerRecord[]>;
  addFault(fault: NewFault): Promise<Fault>;
  hold(point: string, selectors?: Selectors & { producer_id?: number }): Promise<Hold>;
  now(): Promise<number>;
  advanceClock(ms: number): Promise<number>;
  transactions(): Promise<Record<string, unknown>[]>;
  reset(): Promise<void>;
  stop(): Promise<void>;
  request(method: string, path: string, body?: unknown): Promise<any>;
}

export class BrokerError extends Error {
  readonly status: number;
  readonly code: string;
  readonly known: string[];
}

/** Start a broker in a process of its own, which ends with this process at the latest. */
export function startBroker(options?: BrokerOptions): Promise<Broker>;

/** Use a broker that runs, by the URL of its control port; stop() leaves it running. */
export function connectBroker(controlUrl: string): Promise<Broker>;
