// The tables of the overview: one for each kind of thing, with a sentence for when it is empty.

import { assignments, badge, byId, count, duration, element, lines, linesCell, partitions, selectors, text } from "./elements.js";
import { action } from "./requests.js";

export const KINDS_OF_STATE = {
  Ongoing: "warn", PrepareCommit: "warn", PrepareAbort: "warn", CompleteCommit: "good", CompleteAbort: "", Empty: "",
  Stable: "good", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn", Dead: "bad",
};

export function transactionState(transaction) {
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

/** A link to the page of one topic, transaction, group or node. */
export const pageLink = (kind, name, label = name) => element("a", { href: pageOf(kind, name), className: "id" }, String(label));
export const pageOf = (kind, name) => `#/${kind}/${encodeURIComponent(name)}`;

function replication(partition) {
  const { is_replication_held: isHeld, adding_replicas: adding, removing_replicas: removing } = partition;
  const isMoving = adding.length + removing.length > 0;
  const target = partition.replicas.filter((node) => !removing.includes(node));
  return [...(isHeld ? [badge("held", "warn")] : []), ...(isMoving ? [badge(`moving to ${target.join(", ")}`, "warn")] : [])];
}

export const SECTIONS = [
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
      { label: "Unsent responses", minor: true, number: true, cell: (fault) => [text(fault.unsent)] },
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
      { label: "Reached", minor: true, number: true, cell: (hold) => [text(hold.hits)] },
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
      { label: "Transactional id", heads: true, cell: (transaction) => [pageLink("transactions", transaction.transactional_id)] },
      { label: "State", cell: transactionState },
      { label: "Open for", number: true, cell: (transaction) => [text(duration(transaction.open_for_ms))] },
      { label: "Producer id", minor: true, cell: (transaction) => [text(transaction.producer_id, "mono digits")] },
      { label: "Epoch", minor: true, number: true, cell: (transaction) => [text(transaction.producer_epoch, "mono")] },
      { label: "Next", minor: true, cell: (transaction) => (transaction.next_producer_id === null ? [] : [text(`${transaction.next_producer_id} / ${transaction.next_producer_epoch ?? "-"}`, "mono")]) },
      { label: "Timeout", minor: true, number: true, cell: (transaction) => [text(transaction.is_two_phase_commit ? "never" : duration(transaction.timeout_ms))] },
      { label: "Partitions", cell: (transaction) => lines(transactionPartitions(transaction)), attributes: linesCell },
      { label: "Coordinator", minor: true, cell: (transaction) => [text(transaction.coordinator)] },
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
      { label: "Partition", heads: true, cell: (partition) => [pageLink("topics", partition.topic, `${partition.topic}-${partition.partition}`)] },
      { label: "Last stable offset", number: true, cell: (partition) => [text(partition.last_stable_offset)] },
      { label: "High watermark", number: true, cell: (partition) => [text(partition.high_watermark)] },
      { label: "Held back", cell: heldBack },
      { label: "Log end", minor: true, number: true, cell: (partition) => [text(partition.log_end_offset)] },
      { label: "Open transactions", cell: (partition) => lines(openTransactions(partition)), attributes: linesCell },
      { label: "Leader", minor: true, cell: (partition) => (partition.leader === null ? [badge("none", "bad")] : [text(partition.leader)]) },
      { label: "Epoch", minor: true, number: true, cell: (partition) => [text(partition.leader_epoch)] },
      { label: "Replication", minor: true, cell: replication },
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
      { label: "Group", heads: true, cell: (group) => [pageLink("groups", group.group)] },
      { label: "State", cell: (group) => [badge(group.state, KINDS_OF_STATE[group.state] ?? "")] },
      { label: "Protocol", minor: true, cell: (group) => [text([group.type, group.protocol].filter(Boolean).join(", "), "mono")] },
      { label: "Epoch", minor: true, number: true, cell: (group) => [text(group.epoch)] },
      { label: "Members", cell: groupMembers, attributes: linesCell },
      { label: "Coordinator", minor: true, cell: (group) => [text(group.coordinator)] },
    ],
    empty: (state) => ["No consumer groups yet. They appear when a consumer with a group.id joins or commits at ", element("code", {}, state.health.bootstrap_servers), "."],
  },
  {
    id: "nodes",
    title: "Nodes",
    rows: (state) => state.nodes,
    key: (node) => `${node.node}`,
    columns: [
      { label: "Node", heads: true, cell: (node) => [pageLink("nodes", node.node)] },
      { label: "State", cell: (node) => [node.is_alive ? badge("running", "good") : badge("down", "bad"), ...(node.is_controller ? [badge("controller")] : [])] },
      { label: "Addresses", cell: (node) => lines(Object.entries(node.addresses).map(([listener, address]) => `${address} ${listener}`)), attributes: linesCell },
      { label: "Connections", minor: true, number: true, cell: (node) => [text(node.connections)] },
      { label: "Leads partitions", minor: true, number: true, cell: (node) => [text(node.leads)] },
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

export function groupMembers(group) {
  if (!group.members.length) return [text("none", "quiet")];
  return group.members.map((member) => {
    const name = member.group_instance_id ?? member.client_id;
    const assigned = member.assignment === null ? "" : member.assignment.length ? partitions(member.assignment).join("; ") : "nothing assigned";
    const leads = member.member_id === group.leader ? " (leader)" : "";
    return text(`${name}${leads} at ${member.client_host}${assigned && `: ${assigned}`}`, "mono");
  });
}
