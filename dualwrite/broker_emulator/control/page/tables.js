// Tables whose rows are kept from one refresh to the next, so that neither focus nor scroll position is lost.

import { element, setText } from "./elements.js";

export class Section {
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
    this.cells = description.columns.map(({ label, number, heads, minor, attributes = {} }) => {
      const inner = element("div", attributes);
      const cell = element(heads ? "th" : "td", { "data-label": label, role: heads ? "rowheader" : "cell", className: `${number ? "number" : ""} ${minor ? "minor" : ""}`.trim(), ...(heads ? { scope: "row" } : {}) }, inner);
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
