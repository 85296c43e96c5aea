// Sliders for the in-context weights: moving one writes all of them into the last layer's attention.

import { byId, reweighted, slider } from "./dom.js";

export class Steering {
  constructor(store) {
    Object.assign(this, { store, rows: [] });
  }

  show(view) {
    this.view = view;
    const { order, layers } = view.model;
    this.layer = layers - 1;
    const now = this.edit()?.source.values ?? this.own();
    if (this.rows.length !== order) {
      this.rows = now.map((weight, lag) => slider(`lag ${lag + 1}`, weight, {}, (value) => this.set(lag, value)));
      byId("steer-sliders").replaceChildren(...this.rows);
    }
    this.rows.forEach((row, lag) => row.set(now[lag]));
  }

  index() {
    return this.store.state.edits.findIndex((edit) => edit.source.kind === "weights");
  }

  edit() {
    return this.store.state.edits[this.index()];
  }

  /** The model's own weights over the lags: the sliders' initial values. */
  own() {
    const weights = this.view.weights.before.slice(0, -1).map((weight) => Math.max(0, weight));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return total > 1e-9 ? weights.map((weight) => weight / total) : weights.map(() => 1 / weights.length);
  }

  set(lag, value) {
    const index = this.index();
    const values = reweighted(this.edit()?.source.values ?? this.own(), lag, value);
    const edit = {
      hook: "pattern",
      layer: this.layer,
      position: null,
      key: null,
      head: null,
      block: null,
      on: true,
      source: { kind: "weights", values },
    };
    if (index >= 0) this.store.replaceEdit(index, edit, `steer ${lag}`);
    else this.store.addEdit(edit, `steer ${lag}`);
  }
}
