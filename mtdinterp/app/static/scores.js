// Divergences as a table, and the cone of an edit in words.

import { byId, make, shown } from "./dom.js";

export function drawScores({ kl, judge, change, clipped, missing, notes }, names) {
  byId("scores-says").textContent =
    judge === "truth"
      ? "KL from the truth to each prediction; smaller is better."
      : `The true weights are unknown, so KL is measured from the prediction of the ${names[judge]}.`;
  byId("change").textContent = shown(change);
  const difference = kl.after - kl.before;
  byId("difference").textContent = (difference > 0 ? "+" : "") + shown(difference);
  byId("clipped").textContent = `Outputs need not be distributions: clipping moved this one by ${shown(clipped)}.`;
  const remarks = {};
  for (const [name, note] of Object.entries(notes)) remarks[name] = `${names[name]}: ${note}`;
  for (const [name, reason] of Object.entries(missing)) remarks[name] = `${names[name]} not computed: ${reason}`;
  const methods = Object.entries(kl).filter(([name]) => name !== judge);
  byId("scores").tBodies[0].replaceChildren(
    ...methods.map(([name, value]) =>
      make(
        "tr",
        { dataset: { method: name } },
        make("th", { scope: "row", textContent: names[name] }),
        make("td", { textContent: shown(value, 5) }),
      ),
    ),
    ...Object.entries(remarks).map(([name, textContent]) =>
      make("tr", { dataset: { method: name } }, make("th", { scope: "row", colSpan: 2, textContent })),
    ),
  );
}

/** The attention that an edit alone reaches and changes, layer by layer. */
export function coneWords({ layers, moved, change }) {
  const words = layers
    .filter(({ rows }) => rows)
    .map(
      ({ layer, reached, changed, largest, where: [query, key] }) =>
        `layer ${layer + 1}: changed ${changed} of the ${reached} cells that it can reach, ` +
        `at most by ${shown(largest, 3)} (query ${query}, key ${key})`,
    );
  words.push(`prediction moved by ${shown(moved, 3)} (KL ${shown(change, 5)})`);
  return `The selected edit alone: ${words.join("; ")}.`;
}
