// Which model: a checkpoint or its construction, with its constants.

import { ask } from "./api.js";
import { byId, chooseRadio, chosenRadio, fill } from "./dom.js";

export class ModelPanel {
  constructor(store, about, report) {
    Object.assign(this, { store, about, report });
    const names = about.models.map(({ name, zoo }) => [name, zoo ? name : `${name} (yours)`]);
    fill(byId("model"), names, about.first);
    byId("model").addEventListener("change", async () => {
      try {
        const asked = { model: { name: byId("model").value } };
        const fresh = await store.answerFor(() => ask("/api/fresh", asked));
        if (fresh) store.change(fresh);
      } catch (error) {
        report.fail(error);
      }
    });
    for (const radio of document.querySelectorAll('input[name="role"]')) {
      radio.addEventListener("change", () => this.changeRole(chosenRadio("role")));
    }
    byId("beta").addEventListener("input", () => this.change({ beta: +byId("beta").value }, "beta"));
    byId("delta").addEventListener("input", () => this.change({ delta: +byId("delta").value }, "delta"));
    byId("beta-fit").addEventListener("click", () => this.change({ beta: null }));
    byId("delta-reset").addEventListener("click", () => this.change({ delta: 100 }));
    byId("shown-head").addEventListener("change", () => {
      const head = byId("shown-head").value;
      store.change({ head: head === "" ? null : +head });
    });
  }

  change(parts, tag) {
    this.store.change({ model: { ...this.store.state.model, ...parts } }, tag);
  }

  /** Switch to the other model of the pair; edits of blocks that it does not have are removed. */
  changeRole(role) {
    const { model, edits } = this.store.state;
    const kept = edits.filter(({ block }) => !block || this.shared.includes(block));
    const gone = edits.length - kept.length;
    this.store.change({ model: { ...model, role }, ...(gone ? { edits: kept, selected: null } : {}) });
    if (gone) this.report.say(`Removed ${gone} edit${gone > 1 ? "s" : ""} of blocks that the ${role} does not have.`);
  }

  show({ construction, model: { shared_blocks } }) {
    const { model } = this.store.state;
    this.shared = shared_blocks;
    byId("model").value = model.name;
    chooseRadio("role", model.role);
    this.slider("beta", construction.beta, 1);
    this.slider("delta", construction.delta, 0);
    byId("role").hidden = !construction.is_known;
    byId("delta").closest(".slider").hidden = !construction.is_adjustable;
    byId("no-reference").textContent = construction.why_not;
    byId("beta-fit").disabled = (model.beta ?? null) === null;
    const { architecture, layers, order, vocab_size, length } = this.about.models.find(
      ({ name }) => name === model.name,
    );
    byId("model-says").textContent =
      `${architecture}, ${layers} layers, m = ${order}, q = ${vocab_size}, T = ${length}. ` +
      this.constants(construction);
  }

  /** Describe the constants that the sliders set, and those that they do not set. */
  constants({ is_known, is_adjustable, algorithm, constants }) {
    if (!is_known) return "β applies to the one-step bars.";
    if (is_adjustable) return "β and δ apply to the construction.";
    return `Its construction is ${algorithm} with ${constants}; β applies to the one-step bars.`;
  }

  slider(id, value, digits) {
    if (document.activeElement !== byId(id)) byId(id).value = value;
    byId(`${id}-value`).textContent = value.toFixed(digits);
  }
}
