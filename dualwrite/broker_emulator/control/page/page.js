// The page of the broker emulator. Everything that it shows comes from /v1/state and is inserted as text, never as HTML,
// because clients choose the names of transactional ids, client ids and groups. Elements are kept from one refresh to
// the next, so that neither focus nor scroll position is lost.

const POLL_MS = 1000;
const ROWS = 200;

const byId = (id) => document.getElementById(id);

// --- elements ---

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "className") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const text = (value, className = "") => element("span", { className }, String(value));
const badge = (label, kind = "") => element("span", { className: `badge ${kind}` }, label);

function setText(target, value) {
  if (target.textContent !== value) target.textContent = value;
}

// --- formatting ---

const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

function duration(ms) {
  if (ms === null) return "";
  if (ms < 1000) return `${ms} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min` + (seconds % 60 ? ` ${seconds % 60} s` : "");
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

const assignments = (object) => Object.entries(object).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);

function selectors(fault) {
  const { count: most, skip, ...shown } = fault.selectors;
  if (skip) shown.skip = skip;
  if (fault.action) shown.count = most ?? "unlimited";
  return assignments(shown);
}

// Partitions are grouped by topic: orders 0-2, 5
function partitions(list) {
  const topics = new Map();
  for (const { topic, partition } of list) topics.set(topic, [...(topics.get(topic) ?? []), partition]);
  return [...topics].map(([topic, numbers]) => `${topic} ${ranges(numbers.sort((a, b) => a - b))}`);
}

function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

const lines = (texts, className = "mono") => texts.map((line) => text(line, className));
const linesCell = { className: "lines" };

// --- requests ---

async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw new Error(content.error.message);
  return content;
}

async function act(done, method, path, body) {
  try {
    await ask(method, path, body);
    announce(done);
    showProblem("");
  } catch (error) {
    showProblem(error.message);
  }
  await refresh();
}

const action = (label, description, done, method, path, body, className = "") => ({ label, description, className, run: () => act(done, method, path, body) });

function announce(sentence) {
  byId("announcements").textContent = "";
  setTimeout(() => (byId("announcements").textContent = sentence), 50);
}

function showProblem(sentence) {
  const problem = byId("problem");
  problem.hidden = sentence === "";
  setText(problem, sentence);
}

// --- sections: one table each, with a sentence for when it is empty ---

const KINDS_OF_STATE = {
  Ongoing: "warn", PrepareCommit: "warn", PrepareAbort: "warn", CompleteCommit: "good", CompleteAbort: "", Empty: "",
  Stable: "good", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn", Dead: "bad",
};

function transactionState(transaction) {
  const shown = [badge(transaction.state, KINDS_OF_STATE[transaction.state] ?? "")];
  if (transaction.is_two_phase_commit) shown.push(badge("2PC: no timeout"));
  if (transaction.is_kept_prepared) shown.push(badge("kept prepared", "warn"));
  if (transaction.pending_state) shown.push(badge(`writing ${transaction.pending_state}`, "warn"));
  if (transaction.has_failed_epoch_fence) shown.push(badge("epoch fence failed", "bad"));
  return shown;
}

function transactionPartitions(transaction) {
  const shown = partitions(transaction.partitions);
  if (transaction.state.startsWith("Prepare")) {
    const written = transaction.partitions.filter((partition) => partition.is_marker_written).length;
    shown.push(`${written} of ${count(transaction.partitions.length, "marker")} written`);
  }
  return shown;
}

function heldBack(partition) {
  const behind = partition.high_watermark - partition.last_stable_offset;
  if (behind === 0) return [text("nothing", "quiet")];
  const visible = partition.high_watermark - partition.log_start_offset;
  const filled = element("i");
  filled.style.width = `${visible > 0 ? (100 * (partition.last_stable_offset - partition.log_start_offset)) / visible : 0}%`;
  const bar = element("span", { className: "bar", "aria-hidden": "true" }, filled);
  return [element("span", { className: "behind" }, count(behind, "offset")), bar];
}

function openTransactions(partition) {
  return partition.open_transactions.map((producer) => {
    const owner = producer.transactional_id ?? `producer ${producer.producer_id}`;
    return `${owner} from offset ${producer.open_transaction_first_offset}`;
  });
}

const jsonLink = (path, label) => element("a", { href: path, className: "id" }, label);

function replication(partition) {
  const { is_replication_held: isHeld, adding_replicas: adding, removing_replicas: removing } = partition;
  const isMoving = adding.length + removing.length > 0;
  const target = partition.replicas.filter((node) => !removing.includes(node));
  return [...(isHeld ? [badge("held", "warn")] : []), ...(isMoving ? [badge(`moving to ${target.join(", ")}`, "warn")] : [])];
}

const SECTIONS = [
  {
    id: "faults",
    title: "Faults",
    rows: (state) => state.faults,
    key: (fault) => `${fault.fault_id}`,
    columns: [
      { label: "Fault", heads: true, cell: (fault) => [text(fault.fault_id)] },
      { label: "Action", cell: (fault) => [text(fault.action ? assignments(fault.action).map((part) => part.replace(/^type=/, "")).join(" ") : "counts only", "mono")] },
      { label: "Selects", cell: (fault) => lines(selectors(fault)), attributes: linesCell },
      { label: "Hits", number: true, cell: (fault) => [text(fault.hits)] },
      { label: "Waiting", cell: (fault) => (fault.held ? [badge(`${fault.held} held`, "warn")] : [text("none", "quiet")]) },
      { label: "Unsent responses", number: true, cell: (fault) => [text(fault.unsent)] },
      { label: "State", cell: (fault) => [fault.is_in_place ? badge("in place", "warn") : badge("used up")] },
    ],
    actions: (fault) => [
      ...(fault.held ? [action("Release", `Release fault ${fault.fault_id}`, `Fault ${fault.fault_id} released`, "POST", `/v1/faults/${fault.fault_id}/release`, undefined, "primary")] : []),
      action("Remove", `Remove fault ${fault.fault_id}`, `Fault ${fault.fault_id} removed`, "DELETE", `/v1/faults/${fault.fault_id}`),
    ],
    empty: () => [
      "No faults: every request is served as Kafka would serve it. For example, hold the next commit or abort: ",
      element("code", {}, `curl --json '{"api": "EndTxn", "action": {"type": "Hold"}}' ${location.origin}/v1/faults`),
    ],
  },
  {
    id: "holds",
    title: "Held pause points",
    rows: (state) => state.holds,
    key: (hold) => `${hold.hold_id}`,
    columns: [
      { label: "Hold", heads: true, cell: (hold) => [text(hold.hold_id)] },
      { label: "Pause point", cell: (hold) => [text(hold.point, "mono")] },
      { label: "Selects", cell: (hold) => (Object.keys(hold.selectors).length ? lines(assignments(hold.selectors)) : [text("everything", "quiet")]), attributes: linesCell },
      { label: "Reached", number: true, cell: (hold) => [text(hold.hits)] },
      { label: "Waiting", cell: (hold) => (hold.waiting ? [badge(`${hold.waiting} held`, "warn")] : [text("none", "quiet")]) },
    ],
    actions: (hold) => [
      action("Release", `Release hold ${hold.hold_id} of ${hold.point}`, `Hold ${hold.hold_id} released`, "POST", `/v1/holds/${hold.hold_id}/release`, undefined, "primary"),
    ],
    empty: () => [
      "No pause point is held. For example, stop coordinators before they write markers: ",
      element("code", {}, `curl --json '{"point": "before-marker"}' ${location.origin}/v1/holds`),
    ],
  },
  {
    id: "transactions",
    title: "Transactions",
    rows: (state) => state.transactions.transactions.filter((transaction) => transaction.is_open || byId("show-ended").checked),
    total: (state) => state.transactions.total,
    found: (state) => state.transactions.transactions.length,
    key: (transaction) => transaction.transactional_id,
    columns: [
      { label: "Transactional id", heads: true, cell: (transaction) => [jsonLink(`/v1/transactions?transactional_id=${encodeURIComponent(transaction.transactional_id)}`, transaction.transactional_id)] },
      { label: "State", cell: transactionState },
      { label: "Open for", number: true, cell: (transaction) => [text(duration(transaction.open_for_ms))] },
      { label: "Producer id", cell: (transaction) => [text(transaction.producer_id, "mono digits")] },
      { label: "Epoch", number: true, cell: (transaction) => [text(transaction.producer_epoch, "mono")] },
      { label: "Next", cell: (transaction) => (transaction.next_producer_id === null ? [] : [text(`${transaction.next_producer_id} / ${transaction.next_producer_epoch ?? "-"}`, "mono")]) },
      { label: "Timeout", number: true, cell: (transaction) => [text(transaction.is_two_phase_commit ? "never" : duration(transaction.timeout_ms))] },
      { label: "Partitions", cell: (transaction) => lines(transactionPartitions(transaction)), attributes: linesCell },
      { label: "Coordinator", cell: (transaction) => [text(transaction.coordinator)] },
    ],
    empty: (state) =>
      state.transactions.total > 0
        ? [`No transaction is open. ${count(state.transactions.total, "transactional id is", "transactional ids are")} known: select “ended transactions” to see them.`]
        : ["No transactions yet. They appear when a producer with a transactional.id is initialised against ", element("code", {}, state.health.bootstrap_servers), "."],
  },
  {
    id: "partitions",
    title: "Partitions",
    rows: (state) => state.partitions.partitions,
    total: (state) => state.partitions.total,
    found: (state) => state.partitions.partitions.length,
    key: (partition) => `${partition.topic}-${partition.partition}`,
    columns: [
      { label: "Partition", heads: true, cell: (partition) => [jsonLink(`/v1/topics/${encodeURIComponent(partition.topic)}/partitions/${partition.partition}`, `${partition.topic}-${partition.partition}`)] },
      { label: "Last stable offset", number: true, cell: (partition) => [text(partition.last_stable_offset)] },
      { label: "High watermark", number: true, cell: (partition) => [text(partition.high_watermark)] },
      { label: "Held back", cell: heldBack },
      { label: "Log end", number: true, cell: (partition) => [text(partition.log_end_offset)] },
      { label: "Open transactions", cell: (partition) => lines(openTransactions(partition)), attributes: linesCell },
      { label: "Leader", cell: (partition) => (partition.leader === null ? [badge("none", "bad")] : [text(partition.leader)]) },
      { label: "Epoch", number: true, cell: (partition) => [text(partition.leader_epoch)] },
      { label: "Replication", cell: replication },
    ],
    actions: (partition) =>
      partition.is_replication_held
        ? [action("Release", `Release the replication of ${partition.topic}-${partition.partition}`, `Replication of ${partition.topic}-${partition.partition} released`, "POST", `/v1/topics/${encodeURIComponent(partition.topic)}/partitions/${partition.partition}/release-replication`, {}, "primary")]
        : [],
    empty: () => [
      "No topics yet. Topics are created at their first use, or with: ",
      element("code", {}, `curl --json '{"name": "orders", "partitions": 3}' ${location.origin}/v1/topics`),
    ],
  },
  {
    id: "groups",
    title: "Groups",
    rows: (state) => state.groups.groups,
    total: (state) => state.groups.total,
    found: (state) => state.groups.groups.length,
    key: (group) => group.group,
    columns: [
      { label: "Group", heads: true, cell: (group) => [jsonLink(`/v1/groups?group=${encodeURIComponent(group.group)}`, group.group)] },
      { label: "State", cell: (group) => [badge(group.state, KINDS_OF_STATE[group.state] ?? "")] },
      { label: "Protocol", cell: (group) => [text([group.type, group.protocol].filter(Boolean).join(", "), "mono")] },
      { label: "Epoch", number: true, cell: (group) => [text(group.epoch)] },
      { label: "Members", cell: groupMembers, attributes: linesCell },
      { label: "Coordinator", cell: (group) => [text(group.coordinator)] },
    ],
    empty: (state) => ["No consumer groups yet. They appear when a consumer with a group.id joins or commits at ", element("code", {}, state.health.bootstrap_servers), "."],
  },
  {
    id: "nodes",
    title: "Nodes",
    rows: (state) => state.nodes,
    key: (node) => `${node.node}`,
    columns: [
      { label: "Node", heads: true, cell: (node) => [text(node.node)] },
      { label: "State", cell: (node) => [node.is_alive ? badge("running", "good") : badge("down", "bad"), ...(node.is_controller ? [badge("controller")] : [])] },
      { label: "Addresses", cell: (node) => lines(Object.entries(node.addresses).map(([listener, address]) => `${address} ${listener}`)), attributes: linesCell },
      { label: "Connections", number: true, cell: (node) => [text(node.connections)] },
      { label: "Leads partitions", number: true, cell: (node) => [text(node.leads)] },
    ],
    actions: (node) =>
      node.is_alive
        ? [
            action("Stop", `Stop node ${node.node}`, `Node ${node.node} stopped`, "POST", `/v1/nodes/${node.node}/stop`),
            action("Crash", `Crash node ${node.node}`, `Node ${node.node} crashed`, "POST", `/v1/nodes/${node.node}/crash`),
          ]
        : [action("Start", `Start node ${node.node}`, `Node ${node.node} started`, "POST", `/v1/nodes/${node.node}/start`, undefined, "primary")],
    empty: () => ["There are no nodes."],
  },
];

function groupMembers(group) {
  if (!group.members.length) return [text("none", "quiet")];
  return group.members.map((member) => {
    const name = member.group_instance_id ?? member.client_id;
    const assigned = member.assignment === null ? "" : member.assignment.length ? partitions(member.assignment).join("; ") : "nothing assigned";
    const leads = member.member_id === group.leader ? " (leader)" : "";
    return text(`${name}${leads} at ${member.client_host}${assigned && `: ${assigned}`}`, "mono");
  });
}

// --- drawing ---

class Section {
  constructor(description) {
    this.description = description;
    this.rows = new Map();
    this.heading = element("h2", { id: description.id, tabindex: "-1" }, description.title);
    this.count = element("span", { className: "count" });
    this.body = element("tbody", { role: "rowgroup" });
    const labels = description.columns.map(({ label, number }) => element("th", { scope: "col", role: "columnheader", className: number ? "number" : "" }, label));
    if (description.actions) labels.push(element("th", { scope: "col", role: "columnheader" }, element("span", { className: "visually-hidden" }, "Actions")));
    const head = element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...labels));
    this.table = element("table", { role: "table", "aria-labelledby": description.id }, head, this.body);
    this.empty = element("p", { className: "empty" });
    this.emptyText = null;
    this.element = element("section", { "aria-labelledby": description.id }, element("div", { className: "heading" }, this.heading, this.count), this.table, this.empty);
  }

  draw(state, filter) {
    const all = this.description.rows(state);
    this.#removeAllBut(new Set(all.map(this.description.key)));
    let before = null;
    let shown = 0;
    for (const data of all) {
      const key = this.description.key(data);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = new Row(this.description)));
      row.draw(data);
      row.element.hidden = filter !== "" && !row.element.textContent.toLowerCase().includes(filter);
      shown += row.element.hidden ? 0 : 1;
      this.#place(row.element, before);
      before = row.element;
    }
    this.#say(state, all.length, shown);
  }

  #place(row, before) {
    const place = before ? before.nextSibling : this.body.firstChild;
    if (place === row) return;
    const focused = row.contains(document.activeElement) ? document.activeElement : null;
    this.body.insertBefore(row, place);
    focused?.focus({ preventScroll: true });
  }

  #removeAllBut(wanted) {
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      const hadFocus = row.element.contains(document.activeElement);
      const neighbour = row.element.nextElementSibling ?? row.element.previousElementSibling;
      row.element.remove();
      this.rows.delete(key);
      // if the neighbour is removed too, it passes the focus on in turn
      if (hadFocus) (neighbour?.querySelector("button, a") ?? this.heading).focus({ preventScroll: true });
    }
  }

  #say(state, rows, shown) {
    const { total, found } = this.description;
    const cut = total && found(state) < total(state) ? ` of ${total(state).toLocaleString("en")}` : "";
    setText(this.count, shown < rows ? `${shown} of ${rows} match the filter` : `${rows.toLocaleString("en")}${cut}`);
    this.table.hidden = rows === 0;
    this.empty.hidden = rows !== 0;
    const sentence = this.description.empty(state);
    const said = sentence.map((part) => part.textContent ?? part).join("");
    if (said !== this.emptyText) this.empty.replaceChildren(...sentence);
    this.emptyText = said;
  }
}

class Row {
  constructor(description) {
    this.description = description;
    this.cells = description.columns.map(({ label, number, heads, attributes = {} }) => {
      const inner = element("div", attributes);
      const cell = element(heads ? "th" : "td", { "data-label": label, role: heads ? "rowheader" : "cell", className: number ? "number" : "", ...(heads ? { scope: "row" } : {}) }, inner);
      return { cell, inner, drawn: null };
    });
    this.buttons = new Map();
    this.actions = element("div", { className: "actions" });
    this.element = element("tr", { role: "row" }, ...this.cells.map(({ cell }) => cell));
    if (description.actions) this.element.append(element("td", { role: "cell", "data-label": "" }, this.actions));
  }

  draw(data) {
    this.description.columns.forEach((column, index) => {
      const cell = this.cells[index];
      const said = column.cell(data);
      const drawn = said.map((part) => part.outerHTML).join("");
      if (drawn !== cell.drawn && !this.#replaceTexts(cell.inner, said)) cell.inner.replaceChildren(...said);
      cell.drawn = drawn;
    });
    if (this.description.actions) this.#drawActions(this.description.actions(data));
  }

  // A focused link or a text that is being selected stays the same element if only its text changes.
  #replaceTexts(inner, said) {
    const present = [...inner.children];
    const same = present.length === said.length && present.every((part, index) => part.cloneNode(false).isEqualNode(said[index].cloneNode(false)) && !said[index].childElementCount);
    if (same) present.forEach((part, index) => setText(part, said[index].textContent));
    return same;
  }

  #drawActions(actions) {
    const wanted = new Map(actions.map((each) => [each.label, each]));
    for (const [label, button] of this.buttons) {
      if (wanted.has(label)) continue;
      const hadFocus = button.element === document.activeElement;
      button.element.remove();
      this.buttons.delete(label);
      if (hadFocus) this.hadFocus = true;
    }
    for (const [label, each] of wanted) {
      const known = this.buttons.get(label);
      if (known) known.action = each;
      else this.#addButton(label, each);
    }
    if (this.hadFocus) this.actions.querySelector("button")?.focus({ preventScroll: true });
    this.hadFocus = false;
  }

  #addButton(label, each) {
    const known = { action: each };
    known.element = element("button", { type: "button", className: each.className, "aria-label": each.description, onclick: () => known.action.run() }, label);
    this.buttons.set(label, known);
    if (each.className === "primary") this.actions.prepend(known.element);
    else this.actions.append(known.element);
  }
}

const sections = SECTIONS.map((description) => new Section(description));
document.querySelector("main").append(...sections.map((section) => section.element));
byId("sections").append(...SECTIONS.map(({ id, title }) => element("li", {}, element("a", { href: `#${id}`, onclick: () => byId(id).focus() }, title))));

function drawHead(state) {
  setText(byId("bootstrap"), state.health.bootstrap_servers);
  setText(byId("profile"), state.health.profile);
  setText(byId("cluster-id"), state.health.cluster_id);
  setText(byId("clock-kind"), state.clock.kind === "virtual" ? "Clock (virtual: stands still until advanced)" : "Clock");
  const now = new Date(state.clock.now_ms).toISOString();
  byId("clock").setAttribute("datetime", now);
  setText(byId("clock"), now.replace("T", " ").replace(/\.\d+Z$/, " UTC"));
  byId("advance").hidden = state.clock.kind !== "virtual";
}

function drawConnection(state, sentence) {
  byId("connection").dataset.state = state;
  setText(byId("connection"), sentence);
}

let lastState = null;

function draw() {
  if (!lastState) return;
  drawHead(lastState);
  const filter = byId("filter").value.trim().toLowerCase();
  for (const section of sections) section.draw(lastState, filter);
}

// --- refreshing ---

let isPaused = false;
let isLost = false;
let timer = 0;

async function refresh() {
  clearTimeout(timer);
  const began = performance.now();
  try {
    lastState = await ask("GET", `/v1/state?limit=${ROWS}&internal=${byId("show-internal").checked}`);
    draw();
    drawConnection(isPaused ? "paused" : "live", isPaused ? "paused" : "live");
    if (isLost) announce("The emulator is responding again");
    isLost = false;
  } catch (error) {
    drawConnection("lost", `the emulator does not respond; the data shown is old (${error.message})`);
    if (!isLost) announce("The emulator does not respond");
    isLost = true;
  }
  // an emulator with a very large state is queried less often
  if (!isPaused) timer = setTimeout(refresh, Math.max(POLL_MS, 10 * (performance.now() - began)));
}

function setPaused(paused) {
  isPaused = paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  announce(paused ? "Refreshing is paused" : "Refreshing resumed");
  refresh();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!isPaused) refresh();
});

// --- controls and keys ---

byId("filter").addEventListener("input", draw);
byId("show-ended").addEventListener("change", draw);
byId("show-internal").addEventListener("change", refresh);
byId("pause").addEventListener("click", () => setPaused(!isPaused));
byId("show-help").addEventListener("click", () => byId("help").showModal());
byId("advance").addEventListener("submit", (event) => {
  event.preventDefault();
  const ms = Math.round(Number(byId("duration").value) * 1000);
  act(`The clock was advanced by ${duration(ms)}`, "POST", "/v1/clock/advance", { duration_ms: ms });
});

function jumpTo(id) {
  byId(id).focus();
  byId(id).scrollIntoView({ block: "start" });
}

const KEYS = [
  ...SECTIONS.map(({ id, title }, index) => ({ key: String(index + 1), does: `go to “${title}”`, run: () => jumpTo(id) })),
  { key: "/", does: "filter rows", run: () => byId("filter").focus() },
  { key: "p", does: "pause or resume refreshing", run: () => setPaused(!isPaused) },
  { key: "?", does: "show these keys", run: () => byId("help").showModal() },
];
byId("keys").append(...KEYS.flatMap(({ key, does }) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, does)]));
byId("keys").append(element("dt", {}, element("kbd", {}, "Escape")), element("dd", {}, "clear the filter, close this dialog"));

byId("use-keys").checked = localStorage.getItem("use-keys") !== "no";
byId("use-keys").addEventListener("change", () => localStorage.setItem("use-keys", byId("use-keys").checked ? "yes" : "no"));

document.addEventListener("keydown", (event) => {
  const filter = byId("filter");
  if (event.key === "Escape" && event.target === filter) {
    filter.value = "";
    draw();
    return;
  }
  if (event.ctrlKey || event.altKey || event.metaKey || byId("help").open || !byId("use-keys").checked) return;
  if (event.target.closest("input:not([type=checkbox])")) return;
  const known = KEYS.find(({ key }) => key === event.key);
  if (!known) return;
  event.preventDefault();
  known.run();
});

refresh();
