// Forms that add a fault and hold a pause point. What can be chosen is what the description of the control port lists.

import { element } from "./elements.js";
import { act, ask, showProblem } from "./requests.js";

const APIS = ["Produce", "Fetch", "Metadata", "FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "ConsumerGroupHeartbeat"];

const WORDS = {
  action: "Action", api: "API", point: "Pause point", transactional_id: "Transactional id", client_id: "Client id", code: "Error code", duration_ms: "Milliseconds",
  after_requests: "After requests", on_release: "On release", count: "How many", skip: "Skip first", topic: "Topic", partition: "Partition", group: "Group", node: "Node",
};

let described = null;

/** The schemas of the control port, asked for once. */
const schemas = () => (described ??= ask("GET", "/v1/openapi.json").then((document) => document.components.schemas));

function input(name, attributes = {}) {
  return element("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });
}

const labelled = (name, control) => element("label", {}, element("span", {}, WORDS[name] ?? name), control);

const number = (name, attributes = {}) => labelled(name, input(name, { type: "number", min: "0", step: "1", ...attributes }));
const words = (name, attributes = {}) => labelled(name, input(name, { type: "text", ...attributes }));

function choice(name, options) {
  return labelled(name, element("select", { name }, ...options.map(([value, label = value]) => element("option", { value }, label))));
}

function ofKind(name, schema) {
  if (schema.type === "integer") return number(name, { required: "", value: String(schema.default ?? "") });
  if (schema.type === "boolean") return labelled(name, input(name, { type: "checkbox" }));
  return words(name, { required: "" });
}

// What was given, as the request needs it: nothing for what was left empty.
function given(form, names) {
  const body = {};
  for (const name of names) {
    const control = form.elements.namedItem(name);
    if (!control) continue;
    if (control.type === "checkbox") body[name] = control.checked;
    else if (control.value === "") continue;
    else body[name] = control.type === "number" || (name === "code" && /^-?\d+$/.test(control.value)) ? Number(control.value) : control.value;
  }
  return body;
}

// A form behind a button that opens it. `fill` makes its fields when it is first opened.
function folded(title, submitLabel, fill, submit) {
  const fields = element("div", { className: "fields" });
  const form = element("form", { className: "adding" }, fields, element("button", { type: "submit", className: "primary" }, submitLabel));
  const details = element("details", { className: "folded" }, element("summary", {}, title), form);
  details.addEventListener("toggle", async () => {
    if (!details.open || fields.childElementCount) return;
    try {
      fill(fields, await schemas());
    } catch (error) {
      showProblem(error.message);
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await submit(form);
  });
  return details;
}

/** Add a fault: an API or a pause point, what happens, and to whom. */
export function faultForm() {
  const SELECTORS = ["transactional_id", "topic", "partition", "group", "client_id", "node", "skip"];
  const extra = element("div", { className: "fields" });
  let actions = {};

  function fill(fields, known) {
    const mapping = known.NewFault.properties.action.discriminator.mapping;
    actions = Object.fromEntries(Object.keys(mapping).map((name) => [name, known[name].properties]));
    const list = element("datalist", { id: "apis" }, ...APIS.map((name) => element("option", { value: name })));
    const kind = choice("action", [["", "only count"], ...Object.keys(actions).map((name) => [name])]);
    const select = kind.querySelector("select");
    select.value = "Hold";
    select.addEventListener("change", () => drawExtra(select.value));
    const more = element("details", {}, element("summary", {}, "Only for\u2026"), element("div", { className: "fields" },
      words("transactional_id"), words("topic"), number("partition"), words("group"), words("client_id"), number("node"), number("skip"),
      choice("point", [["", "none: requests"], ...known.NewHold.properties.point.enum.map((name) => [name])])));
    fields.append(words("api", { list: "apis", placeholder: "EndTxn" }), list, kind, extra, number("count", { placeholder: "every", value: "1", min: "1" }), more);
    drawExtra(select.value);
  }

  function drawExtra(name) {
    const own = Object.entries(actions[name] ?? {}).filter(([field]) => field !== "type");
    extra.replaceChildren(...own.map(([field, schema]) => ofKind(field, schema)));
  }

  async function submit(form) {
    const body = given(form, ["api", "point", ...SELECTORS]);
    const name = form.elements.namedItem("action").value;
    if (name) body.action = { type: name, ...given(form, Object.keys(actions[name]).filter((field) => field !== "type")) };
    const count = form.elements.namedItem("count").value;
    body.count = count === "" ? null : Number(count);
    await act("The fault is in place", "POST", "/v1/faults", body);
  }

  return folded("Add a fault", "Add", fill, submit);
}

/** Hold a pause point, of everything or of one transaction. */
export function holdForm(transactionalId = null) {
  const fill = (fields, known) => {
    fields.append(choice("point", known.NewHold.properties.point.enum.map((name) => [name])));
    if (transactionalId === null) fields.append(words("transactional_id", { placeholder: "any" }), words("topic", { placeholder: "any" }));
    fields.querySelector("select").value = "before-marker";
  };
  const submit = async (form) => {
    const body = given(form, ["point", "transactional_id", "topic"]);
    if (transactionalId !== null) body.transactional_id = transactionalId;
    await act(`${body.point} is held`, "POST", "/v1/holds", body);
  };
  return folded(transactionalId === null ? "Hold a pause point" : "Hold a pause point of this transaction", "Hold", fill, submit);
}
