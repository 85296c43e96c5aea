// Every registered probe, run on demand; the summary of its result is shown as text.

import { ask } from "./api.js";
import { byId, make } from "./dom.js";

export class ProbesPanel {
  constructor(store, about) {
    Object.assign(this, { store, name: null });
    this.entries = about.probes.map((probe) => this.entry(probe));
    byId("probe-list").replaceChildren(...this.entries.map(({ element }) => element));
  }

  /** Summaries belong to a checkpoint, so they are cleared when another one is opened. */
  show() {
    const { name } = this.store.state.model;
    if (name === this.name) return;
    this.name = name;
    for (const { text } of this.entries) text.textContent = "";
  }

  entry({ name, label }) {
    const run = make("button", { type: "button", textContent: "Run", dataset: { probe: name } });
    run.ariaLabel = `Run: ${label}`;
    const title = make("span", {}, `${label} `, make("code", { textContent: name }));
    const text = make("pre", { ariaLive: "polite" });
    const element = make("div", { className: "probe" }, make("div", { className: "row" }, title, run), text);
    run.addEventListener("click", () => this.run(name, run, text));
    return { element, text };
  }

  async run(name, button, text) {
    const model = this.store.state.model.name;
    button.disabled = true;
    text.textContent = "Running …";
    let answer;
    try {
      answer = (await ask("/api/probe", { model: { name: model }, name })).summary;
    } catch (error) {
      answer = error.message;
    }
    button.disabled = false;
    if (model === this.name) text.textContent = answer;
  }
}
