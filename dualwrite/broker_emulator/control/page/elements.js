// Elements and texts. Everything is inserted as text, never as HTML: clients choose names, keys and values.

export const byId = (id) => document.getElementById(id);

// --- elements ---

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "className") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const text = (value, className = "") => element("span", { className }, String(value));
export const badge = (label, kind = "") => element("span", { className: `badge ${kind}` }, label);

export function setText(target, value) {
  if (target.textContent !== value) target.textContent = value;
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export function time(ms) {
  return ms === null ? "" : new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function duration(ms) {
  if (ms === null) return "";
  if (ms < 1000) return `${ms} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min` + (seconds % 60 ? ` ${seconds % 60} s` : "");
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

export const assignments = (object) => Object.entries(object).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);

export function selectors(fault) {
  const { count: most, skip, ...shown } = fault.selectors;
  if (skip) shown.skip = skip;
  if (fault.action) shown.count = most ?? "unlimited";
  return assignments(shown);
}

// Partitions are grouped by topic: orders 0-2, 5
export function partitions(list) {
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

export const lines = (texts, className = "mono") => texts.map((line) => text(line, className));
export const linesCell = { className: "lines" };
