// Every registered probe, run on demand: the claims of its result as a table, then its tables and pictures.

import { ask } from "./api.js";
import { byId, make } from "./dom.js";

export class ProbesPanel {
  constructor(store, about) {
    Object.assign(this, { store, name: null });
    this.entries = about.probes.map((probe) => this.entry(probe));
    byId("probe-list").replaceChildren(...this.entries.map(({ element }) => element));
  }

  /** Results belong to a checkpoint, so they are cleared when another one is opened. */
  show() {
    const { name } = this.store.state.model;
    if (name === this.name) return;
    this.name = name;
    for (const { status, result } of this.entries) {
      status.textContent = "";
      result.replaceChildren();
    }
  }

  entry({ name, label }) {
    const run = make("button", { type: "button", textContent: "Run", dataset: { probe: name } });
    run.ariaLabel = `Run: ${label}`;
    const title = make("span", {}, `${label} `, make("code", { textContent: name }));
    const status = make("output", { ariaLive: "polite" });
    const host = make("div", { className: "result" });
    const element = make("div", { className: "probe" }, make("div", { className: "row" }, title, run), status, host);
    const entry = { element, status, result: shadow(host) };
    run.addEventListener("click", () => this.run(name, run, entry));
    return entry;
  }

  async run(name, button, { status, result }) {
    const model = this.store.state.model.name;
    button.disabled = true;
    status.textContent = "Running …";
    result.replaceChildren();
    let sentence = "";
    let html = "";
    try {
      ({ html } = await ask("/api/probe", { model: { name: model }, name }));
    } catch (error) {
      sentence = error.message;
    }
    button.disabled = false;
    if (model !== this.name) return;
    status.textContent = sentence;
    // The server makes this HTML from typed blocks and escapes all text in them.
    result.innerHTML = html;
  }
}

/** An element inside `host` that has the style of reports and none of the workbench's own. */
function shadow(host) {
  const root = host.attachShadow({ mode: "open" });
  const result = make("div");
  root.append(make("link", { rel: "stylesheet", href: "/page.css" }), result);
  return result;
}
