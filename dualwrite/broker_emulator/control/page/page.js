// The page of the broker emulator: an overview, and pages of single topics, transactions, groups and nodes. Everything
// that it shows comes from the control port and is inserted as text.

import { detailOf } from "./details.js";
import { byId, duration, element, setText } from "./elements.js";
import { faultForm, holdForm } from "./forms.js";
import { act, announce, ask, showProblem, whenActed } from "./requests.js";
import { SECTIONS } from "./sections.js";
import { Section } from "./tables.js";

const POLL_MS = 1000;
const ROWS = 200;

const sections = SECTIONS.map((description) => new Section(description));
const overview = byId("overview");
overview.append(...sections.map((section) => section.element));
byId("faults").closest("section").append(faultForm());
byId("holds").closest("section").append(holdForm());
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
  if (detail) detail.draw(filter);
  else for (const section of sections) section.draw(lastState, filter);
}

// --- pages of their own: #/topics/orders, with the browser's own back button ---

let detail = null;

function follow() {
  const next = detailOf(location.hash);
  if (next?.path === detail?.path) return detail ? detail.follow(location.hash) : undefined;
  const goesBack = detail !== null && next === null;
  detail = next;
  overview.hidden = byId("sections").hidden = byId("of-overview").hidden = detail !== null;
  byId("back").hidden = detail === null;
  byId("detail").replaceChildren(...(detail ? [detail.element] : []));
  document.title = detail ? `${detail.title} \u00b7 Broker emulator` : "Broker emulator";
  showProblem("");
  if (detail) {
    scrollTo(0, 0);
    detail.heading.focus({ preventScroll: true });
  } else if (goesBack) byId(location.hash.slice(1) || "faults")?.focus({ preventScroll: location.hash === "" });
  return refresh();
}

addEventListener("hashchange", follow);

// --- refreshing ---

let isPaused = false;
let isLost = false;
let timer = 0;
let refreshes = 0;

async function refresh() {
  clearTimeout(timer);
  const number = ++refreshes;
  const began = performance.now();
  try {
    const path = `/v1/state?limit=${detail ? 1 : ROWS}&internal=${byId("show-internal").checked}`;
    const [state] = await Promise.all([ask("GET", path), detail?.load()]);
    if (number !== refreshes) return; // a later one has begun, perhaps of another page
    lastState = state;
    draw();
    drawConnection(isPaused ? "paused" : "live", isPaused ? "paused" : "live");
    if (isLost) announce("The emulator is responding again");
    isLost = false;
  } catch (error) {
    if (number !== refreshes) return;
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
  if (detail) {
    location.hash = id;
    return;
  }
  byId(id).focus();
  byId(id).scrollIntoView({ block: "start" });
}

const KEYS = [
  ...SECTIONS.map(({ id, title }, index) => ({ key: String(index + 1), does: `go to “${title}”`, run: () => jumpTo(id) })),
  { key: "0", does: "go to the overview", run: () => (location.hash = "") },
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
  if (event.target.closest("input:not([type=checkbox]), select")) return;
  const known = KEYS.find(({ key }) => key === event.key);
  if (!known) return;
  event.preventDefault();
  known.run();
});

whenActed(refresh);
if (detailOf(location.hash)) follow();
else refresh();
