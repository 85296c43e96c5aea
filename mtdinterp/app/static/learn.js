// Guided experiments: what to expect, then what happened.

import { ask } from "./api.js";
import { byId, make } from "./dom.js";

export class LearnPanel {
  constructor(store, about, report) {
    const cards = Object.entries(about.experiments).map(([name, { title, expect }]) => {
      const run = make("button", {
        type: "button",
        className: "primary",
        textContent: "Show it",
        dataset: { run: name },
      });
      run.addEventListener("click", async () => {
        try {
          const { state, outcome } = await ask("/api/experiment", { state: store.state, name });
          store.change({ edits: state.edits, selected: 0 });
          byId("outcome").textContent = outcome;
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
