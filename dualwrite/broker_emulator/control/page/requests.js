// Requests to the control port, and what the page says about them.

import { byId, setText } from "./elements.js";

export async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw Object.assign(new Error(content.error.message), { status: response.status });
  return content;
}

let acted = async () => {};

/** Say what is to be done after each action. */
export function whenActed(refresh) {
  acted = refresh;
}

export async function act(done, method, path, body) {
  try {
    await ask(method, path, body);
    announce(done);
    showProblem("");
  } catch (error) {
    showProblem(error.message);
  }
  await acted();
}

export const action = (label, description, done, method, path, body, className = "") => ({ label, description, className, run: () => act(done, method, path, body) });

export function announce(sentence) {
  byId("announcements").textContent = "";
  setTimeout(() => (byId("announcements").textContent = sentence), 50);
}

export function showProblem(sentence) {
  const problem = byId("problem");
  problem.hidden = sentence === "";
  setText(problem, sentence);
}
