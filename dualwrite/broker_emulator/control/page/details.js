// Pages of one topic, transaction, group or node, each with a URL of its own: #/topics/orders.

import { assignments, badge, byId, count, duration, element, lines, linesCell, partitions, setText, text, time } from "./elements.js";
import { holdForm } from "./forms.js";
import { ask } from "./requests.js";
import { groupMembers, KINDS_OF_STATE, pageLink, SECTIONS, transactionState } from "./sections.js";
import { Section } from "./tables.js";

const RECORDS = 200;
const SHOWN_CHARACTERS = 2000;

const overviewTable = (id, rows, title) => ({ ...SECTIONS.find((section) => section.id === id), id: `detail-${id}`, title, rows, total: undefined, found: undefined, empty: () => ["None."] });
const encoded = encodeURIComponent;

// --- records ---

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// Keys and values are any bytes: what is not UTF-8 is shown as hexadecimal digits.
function content(base64) {
  if (base64 === null) return [text("null", "quiet")];
  const bytes = bytesOf(base64);
  try {
    return [text(shortened(new TextDecoder("utf-8", { fatal: true }).decode(bytes)), "value")];
  } catch {
    const digits = Array.from(bytes.subarray(0, SHOWN_CHARACTERS / 2), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return [badge(count(bytes.length, "byte")), text(shortened(digits), "value")];
  }
}

const shortened = (value) => (value.length > SHOWN_CHARACTERS ? `${value.slice(0, SHOWN_CHARACTERS)}\u2026` : value);

const KINDS_OF_END = { committed: "good", aborted: "bad", open: "warn" };

function recordTransaction(record) {
  if (record.marker) return [badge(`${record.marker} marker`, record.marker === "commit" ? "good" : "bad")];
  return record.transaction ? [badge(record.transaction, KINDS_OF_END[record.transaction])] : [];
}

const RECORD_TABLE = {
  id: "detail-records",
  title: "Records",
  rows: ({ records }) => records.records,
  total: ({ records }) => records.total,
  found: ({ records }) => records.records.length,
  key: (record) => `${record.partition}-${record.offset}`,
  columns: [
    { label: "Offset", heads: true, cell: (record) => [text(`${record.partition} : ${record.offset}`, "mono digits")] },
    { label: "Key", cell: (record) => (record.marker ? [] : content(record.key)) },
    { label: "Value", cell: (record) => (record.marker ? [] : content(record.value)) },
    { label: "Headers", cell: (record) => record.headers.map(({ key, value }) => element("span", {}, text(`${key}: `, "value"), ...content(value))), attributes: linesCell },
    { label: "Transaction", minor: true, cell: recordTransaction },
    { label: "Producer", minor: true, number: true, cell: (record) => (record.producer_id === null ? [] : [text(record.producer_id, "mono")]) },
    { label: "Time", minor: true, cell: (record) => [text(time(record.timestamp_ms), "quiet")] },
  ],
  empty: () => ["No records that a consumer with this isolation level gets."],
};

const DEFAULTS = { isolation: "read_committed", partition: "", offset: "", markers: "true" };

// Which records are shown is a part of the URL, so that a link shows the same.
function recordChoices(page) {
  const select = (name, options) => element("select", { name }, ...options.map((value) => element("option", { value }, value)));
  const form = element("form", { className: "controls", "aria-label": "Which records" },
    element("label", {}, "Isolation ", select("isolation", ["read_committed", "read_uncommitted"])),
    element("label", {}, "Partition ", element("select", { name: "partition" }, element("option", { value: "" }, "all"))),
    element("label", {}, "From offset ", element("input", { name: "offset", type: "number", min: "0", step: "1", placeholder: "first" })),
    element("label", {}, element("input", { name: "markers", type: "checkbox" }), " markers"));
  const controls = form.elements;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    const chosen = { isolation: controls.isolation.value, partition: controls.partition.value, offset: controls.partition.value === "" ? "" : controls.offset.value, markers: String(controls.markers.checked) };
    const query = new URLSearchParams(Object.entries(chosen).filter(([name, value]) => value !== DEFAULTS[name]));
    location.replace(`#${page.path}${query.size ? `?${query}` : ""}`);
  });
  function draw({ topic }, options) {
    while (controls.partition.length <= topic.partitions) controls.partition.append(element("option", {}, String(controls.partition.length - 1)));
    for (const name of ["isolation", "partition", "offset"]) if (document.activeElement !== controls[name]) controls[name].value = options[name];
    controls.markers.checked = options.markers === "true";
    controls.offset.disabled = options.partition === "";
  }
  return { element: form, draw };
}

function recordQuery(options) {
  const query = new URLSearchParams({ encoding: "base64", limit: RECORDS, isolation: options.isolation, markers: options.markers });
  if (options.partition !== "") query.set("partition", options.partition);
  if (options.partition !== "" && options.offset !== "") query.set("offset", options.offset);
  return query;
}

// --- kinds of pages ---

const KINDS = {
  topics: {
    noun: "Topic",
    json: (name) => `/v1/topics/${encoded(name)}`,
    async load(name, options) {
      const [topic, all, records] = await Promise.all([
        ask("GET", `/v1/topics/${encoded(name)}`),
        ask("GET", `/v1/partitions?topic=${encoded(name)}&limit=${RECORDS}`),
        ask("GET", `/v1/topics/${encoded(name)}/records?${recordQuery(options)}`),
      ]);
      return { topic, partitions: all.partitions, records };
    },
    facts: ({ topic }) => [
      ["Partitions", [text(topic.partitions)]],
      ["Topic id", [text(topic.topic_id, "mono")]],
      ["Settings", lines(Object.keys(topic.configs).length ? assignments(topic.configs) : ["all as the brokers have them"])],
      ...(topic.is_internal ? [["Kind", [badge("internal")]]] : []),
    ],
    sections: [overviewTable("partitions", ({ partitions: all }) => all, "Partitions"), RECORD_TABLE],
    choices: recordChoices,
  },
  transactions: {
    noun: "Transaction",
    json: (name) => `/v1/transactions?transactional_id=${encoded(name)}`,
    async load(name) {
      const [found, { holds }] = await Promise.all([ask("GET", this.json(name)), ask("GET", "/v1/holds")]);
      return { transaction: found.transactions[0], holds };
    },
    facts: ({ transaction }) => [
      ["State", transactionState(transaction)],
      ["Producer id / epoch", [text(`${transaction.producer_id} / ${transaction.producer_epoch}`, "mono")]],
      ...(transaction.next_producer_id === null ? [] : [["Next", [text(`${transaction.next_producer_id} / ${transaction.next_producer_epoch ?? "-"}`, "mono")]]]),
      ...(transaction.previous_producer_id === null ? [] : [["Previous producer id", [text(transaction.previous_producer_id, "mono")]]]),
      ["Timeout", [text(transaction.is_two_phase_commit ? "never" : duration(transaction.timeout_ms))]],
      ...(transaction.open_for_ms === null ? [] : [["Open for", [text(duration(transaction.open_for_ms))]]]),
      ["Began", [text(time(transaction.start_timestamp_ms) || "never")]],
      ["Last change", [text(time(transaction.last_update_timestamp_ms) || "never")]],
      ["Coordinator", [pageLink("nodes", transaction.coordinator, `node ${transaction.coordinator}`)]],
      ["Transaction version", [text(transaction.client_transaction_version)]],
    ],
    sections: [
      {
        id: "detail-marked",
        title: "Partitions",
        rows: ({ transaction }) => transaction.partitions.map((each) => ({ ...each, isEnding: transaction.state.startsWith("Prepare") })),
        key: (each) => `${each.topic}-${each.partition}`,
        columns: [
          { label: "Partition", heads: true, cell: (each) => [pageLink("topics", each.topic, `${each.topic}-${each.partition}`)] },
          { label: "Marker", cell: (each) => (each.is_marker_written ? [badge("written", "good")] : each.isEnding ? [badge("not written", "warn")] : [text("while it ends", "quiet")]) },
        ],
        empty: () => ["The transaction has no partitions: it has just begun, or has ended."],
      },
      overviewTable("holds", ({ holds }) => holds, "Held pause points"),
    ],
    form: holdForm,
  },
  groups: {
    noun: "Group",
    json: (name) => `/v1/groups?group=${encoded(name)}`,
    async load(name) {
      const [{ groups }, { offsets }, all] = await Promise.all([
        ask("GET", this.json(name)), ask("GET", `/v1/groups/${encoded(name)}/offsets`), ask("GET", "/v1/partitions?limit=10000"),
      ]);
      const ends = new Map(all.partitions.map((each) => [`${each.topic}-${each.partition}`, each.high_watermark]));
      return { group: groups[0], offsets: offsets.map((each) => ({ ...each, end: ends.get(`${each.topic}-${each.partition}`) ?? null })) };
    },
    facts: ({ group }) => [
      ["State", [badge(group.state, KINDS_OF_STATE[group.state] ?? "")]],
      ["Protocol", [text([group.type, group.protocol].filter(Boolean).join(", "), "mono")]],
      ["Epoch", [text(group.epoch)]],
      ["Coordinator", group.coordinator === null ? [badge("none", "bad")] : [pageLink("nodes", group.coordinator, `node ${group.coordinator}`)]],
    ],
    sections: [
      {
        id: "detail-members",
        title: "Members",
        rows: ({ group }) => group.members.map((member) => ({ member, group })),
        key: ({ member }) => member.member_id,
        columns: [
          { label: "Member", heads: true, cell: ({ member }) => [text(member.member_id, "id")] },
          { label: "Client", cell: ({ member, group }) => groupMembers({ ...group, members: [{ ...member, assignment: null }] }) },
          { label: "Assigned", cell: ({ member }) => (member.assignment?.length ? lines(partitions([...member.assignment])) : [text("nothing", "quiet")]), attributes: linesCell },
          { label: "State", cell: ({ member }) => (member.state ? [text(member.state)] : []) },
          { label: "Session timeout", minor: true, number: true, cell: ({ member }) => [text(duration(member.session_timeout_ms))] },
        ],
        empty: () => ["The group has no members."],
      },
      {
        id: "detail-offsets",
        title: "Committed offsets",
        rows: ({ offsets }) => offsets,
        key: (each) => `${each.topic}-${each.partition}`,
        columns: [
          { label: "Partition", heads: true, cell: (each) => [pageLink("topics", each.topic, `${each.topic}-${each.partition}`)] },
          { label: "Committed", number: true, cell: (each) => [text(each.offset ?? "none")] },
          { label: "Behind", number: true, cell: (each) => (each.offset === null || each.end === null ? [] : [text(Math.max(0, each.end - each.offset))]) },
          { label: "In a transaction", cell: (each) => (each.is_pending ? [badge("pending", "warn")] : []) },
          { label: "Metadata", minor: true, cell: (each) => (each.metadata ? [text(each.metadata, "value")] : []) },
        ],
        empty: () => ["The group has committed nothing."],
      },
    ],
  },
  nodes: {
    noun: "Node",
    json: (name) => `/v1/nodes/${encoded(name)}`,
    async load(name) {
      const [node, all, { connections }] = await Promise.all([ask("GET", this.json(name)), ask("GET", "/v1/partitions?limit=10000"), ask("GET", "/v1/connections")]);
      return { node, partitions: all.partitions.filter((each) => each.leader === node.node), connections: connections.filter((each) => each.node === node.node) };
    },
    facts: () => [],
    sections: [
      overviewTable("nodes", ({ node }) => [node], "State"),
      overviewTable("partitions", ({ partitions: led }) => led, "Leads partitions"),
      {
        id: "detail-connections",
        title: "Connections",
        rows: ({ connections }) => connections.map((each, index) => ({ ...each, index })),
        key: (each) => String(each.index),
        columns: [
          { label: "Client id", heads: true, cell: (each) => [each.client_id === null ? text("none yet", "quiet") : text(each.client_id, "id")] },
          { label: "From", minor: true, cell: (each) => [text(each.peer_host, "mono")] },
          { label: "Principal", minor: true, cell: (each) => [text(each.principal, "mono")] },
        ],
        empty: () => ["No client is connected."],
      },
    ],
  },
};

class DetailPage {
  constructor(kind, name, hash) {
    const described = (this.described = KINDS[kind]);
    this.name = name;
    this.path = `/${kind}/${encoded(name)}`;
    this.title = `${described.noun} ${name}`;
    this.data = null;
    this.heading = element("h2", { id: "detail-title", tabindex: "-1" }, element("span", { className: "quiet" }, `${described.noun} `), element("span", { className: "id" }, name));
    this.facts = element("dl", { className: "facts" });
    this.missing = element("p", { className: "empty", hidden: "" });
    this.sections = described.sections.map((section) => new Section(section));
    this.body = element("div", {}, ...this.sections.map((section) => section.element));
    this.choices = described.choices?.(this);
    if (this.choices) this.sections.at(-1).element.firstChild.after(this.choices.element);
    if (described.form) this.body.append(described.form(name));
    const json = element("p", { className: "quiet" }, "The same for programs: ", element("a", { href: described.json(name) }, described.json(name)));
    this.element = element("article", { "aria-labelledby": "detail-title" }, this.heading, this.missing, this.facts, this.body, json);
    this.#read(hash);
  }

  /** Another choice of what is shown on the same page. */
  follow(hash) {
    this.#read(hash);
    return this.load().then(() => this.draw(byId("filter").value.trim().toLowerCase()));
  }

  #read(hash) {
    const query = new URLSearchParams(hash.split("?")[1] ?? "");
    this.options = Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, query.get(name) ?? value]));
  }

  async load() {
    const options = this.options;
    try {
      const data = await this.described.load(this.name, options);
      if (options === this.options) [this.data, this.problem] = [data, ""];
    } catch (error) {
      if (error.status === undefined) throw error; // the emulator is gone
      if (options === this.options) [this.data, this.problem] = [null, error.message];
    }
  }

  draw(filter) {
    this.missing.hidden = this.data !== null;
    this.facts.hidden = this.body.hidden = this.data === null;
    if (this.data === null) return setText(this.missing, this.problem ?? "");
    this.#drawFacts(this.described.facts(this.data));
    for (const section of this.sections) section.draw(this.data, filter);
    return this.choices?.draw(this.data, this.options);
  }

  // As with the cells of tables, what has not changed stays: it may be focused or selected.
  #drawFacts(facts) {
    const drawn = facts.map(([label, parts]) => `${label}${parts.map((part) => part.outerHTML).join("")}`);
    if (drawn.join("\n") === this.drawn) return;
    this.drawn = drawn.join("\n");
    this.facts.replaceChildren(...facts.map(([label, parts]) => element("div", {}, element("dt", {}, label), element("dd", { className: "lines" }, ...parts))));
  }
}

/** Return the page that a hash names, or null for the overview. */
export function detailOf(hash) {
  const [, kind, name] = /^#\/(\w+)\/([^?/]+)(?:\?.*)?$/.exec(hash) ?? [];
  if (!Object.hasOwn(KINDS, kind ?? "")) return null;
  try {
    return new DetailPage(kind, decodeURIComponent(name), hash);
  } catch (error) {
    if (error instanceof URIError) return null;
    throw error;
  }
}
