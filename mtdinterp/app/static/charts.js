// Bars: the in-context weights and the prediction, method by method.

import { byId, make } from "./dom.js";
import { CONFIG, barColour, layout } from "./theme.js";

/** Traces of grouped bars; the truth is an outline. */
export function barTraces(series, categories, methods, axes = {}) {
  return Object.entries(series).map(([name, values]) => ({
    type: "bar",
    name: methods[name],
    x: categories,
    y: values,
    ...axes,
    marker:
      name === "truth"
        ? { color: "rgba(0,0,0,0)", line: { color: barColour(name), width: 1.5 } }
        : { color: barColour(name) },
    hovertemplate: `${methods[name]}, %{x}: %{y:.4f}<extra></extra>`,
  }));
}

export const lagNames = (order) => [...Array.from({ length: order }, (_, lag) => `lag ${lag + 1}`), "other"];
export const tokenNames = (size) => Array.from({ length: size }, (_, token) => `${token}`);

function draw(id, series, categories, methods, title) {
  const chart = byId(id),
    values = Object.values(series)
      .flat()
      .filter((value) => value !== null);
  Plotly.react(
    chart,
    barTraces(series, categories, methods),
    layout({
      width: chart.clientWidth,
      height: chart.clientHeight,
      bargap: 0.2,
      margin: { l: 36, r: 6, t: 6, b: 40 },
      xaxis: { type: "category", title: { text: title, standoff: 6, font: { size: 12 } }, showgrid: false },
      // A fixed scale for values in 0..1; it grows if an edit writes values outside that range.
      yaxis: {
        range: [Math.min(0, ...values), Math.max(1.02, ...values)],
        tickformat: ".2f",
        ...(Math.max(...values) > 1.02 ? { nticks: 6 } : { dtick: 0.25 }),
      },
    }),
    CONFIG,
  );
}

/** The legend above both charts. */
export function drawLegends({ weights, weight_labels, predictions, labels }) {
  for (const [card, series, names] of [
    ["weights-card", weights, weight_labels],
    ["prediction-card", predictions, labels],
  ]) {
    const entries = Object.keys(series).map((name) => {
      const key = make("i");
      key.style.borderColor = barColour(name);
      key.style.background = name === "truth" ? "none" : barColour(name);
      return make("li", {}, key, names[name]);
    });
    byId(card)
      .querySelector(".legend")
      .replaceChildren(...entries);
  }
}

export function drawBars(view) {
  draw("weights-chart", view.weights, lagNames(view.model.order), view.weight_labels, "lag of the next token");
  draw("prediction-chart", view.predictions, tokenNames(view.model.vocab_size), view.labels, "next token");
}
