// Guided experiments: what to expect, then what happened.

import { ask } from "./api.js";
import { byId, make } from "./dom.js";

export class LearnPanel {
  constructor(store, about, report) {
    this.withReference = [];
    let shown = null; // the state that the outcome belongs to
    store.onChange(() => {
      if (shown && !store.isAt(shown)) byId("outcome").textContent = "";
    });
    const cards = Object.entries(about.experiments).map(([name, { title, expect, needs_reference }]) => {
      const run = make("button", {
        type: "button",
        className: "primary",
        textContent: "Run",
        dataset: { run: name },
      });
      run.addEventListener("click", async () => {
        try {
          const found = await store.answerFor((state) => ask("/api/experiment", { state, name }));
          if (!found) return;
          store.change({ edits: found.state.edits, selected: 0 });
          shown = store.state;
          byId("outcome").textContent = found.outcome;
        } catch (error) {
          report.fail(error);
        }
      });
      const card = make(
        "details",
        { name: "experiment" },
        make("summary", { textContent: title }),
        make("p", { textContent: expect }),
        run,
      );
      if (needs_reference) this.withReference.push(card);
      card.addEventListener("toggle", () => {
        if (card.open) byId("outcome").textContent = "";
      });
      return card;
    });
    byId("experiments").replaceChildren(...cards);
  }

  /** Experiments that take from the reference are hidden if there is none. */
  show({ construction }) {
    for (const card of this.withReference) card.hidden = !construction.is_known;
  }
}
