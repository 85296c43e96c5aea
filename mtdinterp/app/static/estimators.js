// The table of all registered estimators. It is requested only while it is open, because fitting takes seconds.

import { ask, Latest } from "./api.js";
import { byId, make, shown } from "./dom.js";

export class EstimatorsPanel {
  constructor(store, report) {
    Object.assign(this, { store, asked: null });
    this.requests = new Latest(
      (state, signal) => ask("/api/estimators", state, signal),
      (rows) => this.draw(rows),
      (error) => {
        this.asked = null;
        byId("estimators-status").textContent = "";
        report.fail(error);
      },
    );
    byId("estimators").addEventListener("toggle", () => this.refresh());
  }

  show(view) {
    this.view = view;
    byId("estimator-kl").textContent = `KL(${view.labels[view.judge]} ‖ ·)`;
    this.refresh();
  }

  /** Request the rows if the table is open and something that they depend on has changed. */
  refresh() {
    if (!byId("estimators").open || !this.view) return;
    const { model, tokens, weights } = this.store.state;
    const wanted = JSON.stringify([model, tokens, weights]);
    if (wanted === this.asked) return;
    this.asked = wanted;
    byId("estimators-status").textContent = "Computing …";
    this.requests.put({ ...this.store.state, edits: [], selected: null });
  }

  draw(rows) {
    byId("estimators-status").textContent = "";
    byId("estimator-rows").tBodies[0].replaceChildren(...rows.map((row) => this.row(row)));
  }

  row({ name, label, constants, kl, reason, note }) {
    const remark = [constants, note].filter(Boolean).join("; ");
    const cells = reason
      ? [make("td", { className: "reason", colSpan: 2, textContent: `not computed: ${reason}` })]
      : [make("td", { textContent: remark }), make("td", { textContent: shown(kl, 5) })];
    const title = make("th", { scope: "row", textContent: label });
    return make("tr", { dataset: { estimator: name } }, title, ...cells);
  }
}
