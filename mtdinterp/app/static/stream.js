// The stream at one position: a row of bars for every named block, and sliders for the chosen one's entries.

import { byId, make, shown, slider } from "./dom.js";
import { barColour } from "./theme.js";

const SVG = "http://www.w3.org/2000/svg";

export class StreamPanel {
  constructor(store) {
    Object.assign(this, { store, shape: "" });
    byId("position").addEventListener("change", () => {
      const { tokens } = this.store.state;
      this.store.change({
        position: Math.max(0, Math.min(tokens.length - 1, Math.round(+byId("position").value) || 0)),
      });
    });
  }

  show(view) {
    const { tokens, position, block } = this.store.state;
    this.view = view;
    this.at = position < 0 ? tokens.length + position : position;
    byId("position").min = 0;
    byId("position").max = tokens.length - 1;
    if (document.activeElement !== byId("position")) byId("position").value = this.at;
    byId("stream-says").textContent = view.model.named_stream
      ? "The values of each named block at the selected position; select a block to set its entries."
      : "This model has one additive stream, whose dimensions have no names, so it is shown whole.";
    const largest = Math.max(1, ...view.blocks.flatMap(({ before, after }) => [...before, ...after].map(Math.abs)));
    const focused = document.activeElement?.closest?.("#blocks button")?.dataset.block;
    byId("blocks").replaceChildren(...view.blocks.map((entry) => this.row(entry, largest, entry.name === block)));
    if (focused)
      byId("blocks")
        .querySelector(`[data-block="${CSS.escape(focused)}"]`)
        ?.focus();
    this.sliders(view.blocks.find(({ name }) => name === block));
  }

  row(entry, largest, chosen) {
    const row = make(
      "button",
      { type: "button", className: "block", dataset: { block: entry.name } },
      make("code", { textContent: entry.name }),
      this.bars(entry, largest),
    );
    row.setAttribute("aria-pressed", chosen);
    row.title = entry.after.map((value) => shown(value, 3)).join("  ");
    row.addEventListener("click", () => this.store.change({ block: chosen ? null : entry.name }));
    return row;
  }

  bars({ before, after }, largest) {
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", `0 0 ${Math.max(before.length, 10)} 2`);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("aria-hidden", "true");
    [
      [before, barColour("before"), 0.12],
      [after, barColour("after"), 0.5],
    ].forEach(([values, colour, shift]) => {
      values.forEach((value, at) => {
        // Coloured by the square root, like the maps, because a lag block's entries are far smaller than a token's 1.
        const bar = document.createElementNS(SVG, "rect"),
          size = Math.sqrt(Math.abs(value ?? 0) / largest);
        const place = { x: at + shift, width: 0.38, y: value > 0 ? 1 - size : 1, height: size, fill: colour };
        for (const [name, number] of Object.entries(place)) bar.setAttribute(name, number);
        picture.append(bar);
      });
    });
    return picture;
  }

  /** Moving a slider edits the block at the selected position, before the first layer that reads it. */
  sliders(entry) {
    const shape = entry ? `${entry.name} ${this.at} ${this.store.state.model.name}` : "";
    const rows = [...byId("block-sliders").querySelectorAll(".slider")];
    if (shape === this.shape) {
      rows.forEach((row, at) => row.set(entry.after[at]));
      return;
    }
    this.shape = shape;
    if (!entry) {
      byId("block-sliders").replaceChildren();
      return;
    }
    const limits = { min: -2, max: 2, step: 0.01 };
    byId("block-sliders").replaceChildren(
      make("h3", { textContent: `${entry.name} at position ${this.at}` }),
      make(
        "div",
        { className: "grid2" },
        ...entry.after.map((value, at) => slider(`${at}`, value, limits, (next) => this.set(entry.name, at, next))),
      ),
    );
  }

  set(name, at, value) {
    const { state } = this.store;
    const block = this.view.model.blocks.find((other) => other.name === name);
    const same = (edit) =>
      edit.hook === block.hook &&
      edit.layer === block.layer &&
      edit.block === name &&
      edit.source.kind === "values" &&
      edit.position?.[0] === this.at &&
      edit.position[1] === this.at + 1;
    const index = state.edits.findIndex(same);
    const now =
      index < 0 ? this.view.blocks.find((other) => other.name === name).after : state.edits[index].source.values;
    const edit = {
      hook: block.hook,
      layer: block.layer,
      position: [this.at, this.at + 1],
      key: null,
      head: null,
      block: name,
      on: true,
      source: { kind: "values", values: now.with(at, value) },
    };
    const tag = `block ${name} ${this.at} ${at}`;
    if (index >= 0) this.store.replaceEdit(index, edit, tag);
    else this.store.addEdit(edit, tag);
  }
}
