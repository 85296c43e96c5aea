// Guided experiments: what to expect, then what happened.

import { ask } from "./api.js";
import { byId, make } from "./dom.js";

export class LearnPanel {
  constructor(store, about, report) {
    let shown = null; // the state that the outcome is of
    store.onChange(() => {
      if (shown && !store.isAt(shown)) byId("outcome").textContent = "";
    });
    const cards = Object.entries(about.experiments).map(([name, { title, expect }]) => {
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
      card.addEventListener("toggle", () => {
        if (card.open) byId("outcome").textContent = "";
      });
      return card;
    });
    byId("experiments").replaceChildren(...cards);
  }
}
