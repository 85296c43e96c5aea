// The list of edits, and the form that makes a new one or changes the chosen one.

import { byId, fill, make, reweighted, slider } from "./dom.js";

const RUNS = ["sequence", "reference"];

const FIRST = { share: 0.5, number: 0 };
/** Initial value of the slider for a source's value. */

/** Parse "3", "3-9" or "-1" (from the end) as [from, before]; empty text gives null, which means all. */
export function parseRange(text, length) {
  if (!text.trim()) return null;
  const found = text.trim().match(/^(-?\d+)(?:\s*[-–:]\s*(-?\d+))?$/);
  const ends = found && [found[1], found[2] ?? found[1]].map((end) => (+end < 0 ? length + +end : +end));
  if (!ends || ends.some((end) => end < 0 || end >= length))
    throw new Error(`expected 0 to ${length - 1}, a range such as 3–9, or −1 for the last; got “${text.trim()}”.`);
  return [Math.min(...ends), Math.max(...ends) + 1];
}

/** Parse "2 10" or "2, -1" as the layer and the position, counted from 0, that a source is taken from. */
function parseFrom(text, layers, length) {
  const words = text.split(/[\s,]+/).filter(Boolean);
  const [layer, position] = words.map(Number);
  const at = position < 0 ? length + position : position;
  const within = (value, least, most) =>
    value === undefined || (Number.isInteger(value) && value >= least && value <= most);
  if (words.length > 2 || !within(layer, 1, layers) || !within(at, 0, length - 1))
    throw new Error(`expected a layer from 1 to ${layers} and a position from 0 to ${length - 1}; got “${text.trim()}”.`);
  return { ...(words.length > 0 && { layer: layer - 1 }), ...(words.length > 1 && { position: at }) };
}

export const showRange = (range) =>
  !range ? "" : range[1] === range[0] + 1 ? `${range[0]}` : `${range[0]}–${range[1] - 1}`;

export class EditsPanel {
  constructor(store, about, report) {
    Object.assign(this, { store, about, report, shape: "", written: null });
    fill(byId("edit-hook"), Object.entries(about.hooks));
    for (const id of ["hook", "layer", "block", "head", "position", "key", "source", "from"]) {
      byId(`edit-${id}`).addEventListener("change", () => this.changed());
    }
    byId("edit-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.store.state.selected !== null) this.store.change({ selected: null });
      else this.put((edit) => this.store.addEdit(edit));
    });
    byId("new-edit").addEventListener("click", () => {
      this.store.change({ selected: null });
      byId("edit-hook").focus();
    });
    byId("clear-edits").addEventListener("click", () => {
      if (this.store.state.edits.length) this.store.change({ edits: [], selected: null });
    });
  }

  /** Apply a change of the form to the selected edit. */
  changed(tag = null) {
    const { selected } = this.store.state;
    this.arrange();
    if (selected !== null) this.put((edit) => this.store.replaceEdit(selected, edit, tag));
  }

  /** Pass on the edit that the form describes, or report why it does not describe one. */
  put(use) {
    try {
      this.written = this.read();
    } catch (error) {
      this.report.fail(error);
      return;
    }
    use(this.written);
  }

  /** The value of a field according to `parse`; an error message begins with the field's label. */
  field(id, parse) {
    const field = byId(id);
    field.ariaInvalid = null;
    try {
      return parse(field.value);
    } catch (error) {
      field.ariaInvalid = "true";
      throw new Error(`${field.labels[0].firstChild.textContent.trim()}: ${error.message}`);
    }
  }

  /** The edit that the form describes. */
  read() {
    const { length } = this.store.state.tokens;
    const range = (text) => parseRange(text, length);
    const number = (id) => (byId(id).value === "" ? null : +byId(id).value);
    const hook = byId("edit-hook").value,
      kind = byId("edit-source").value;
    const source = { kind };
    if (["number", "share"].includes(kind)) source.value = this.value;
    if (["values", "weights"].includes(kind)) {
      if (!this.entries) throw new Error("Source: choose a block to set its entries.");
      source.values = this.entries;
    }
    if (RUNS.includes(kind))
      Object.assign(
        source,
        this.field("edit-from", (text) => parseFrom(text, this.model.layers, length)),
      );
    const free = kind !== "weights";
    return {
      hook: free ? hook : "pattern",
      layer: number("edit-layer"),
      source,
      position: free ? this.field("edit-position", range) : null,
      key: free && this.about.with_keys.includes(hook) ? this.field("edit-key", range) : null,
      head: number("edit-head"),
      block: this.about.with_blocks.includes(hook) && byId("edit-block").value ? byId("edit-block").value : null,
      on: this.store.state.edits[this.store.state.selected]?.on ?? true,
    };
  }

  /** Fill the form from an edit. */
  write(edit) {
    byId("edit-hook").value = edit.hook;
    this.arrange(edit.layer);
    byId("edit-layer").value = edit.layer ?? "";
    byId("edit-block").value = edit.block ?? "";
    byId("edit-head").value = edit.head ?? "";
    byId("edit-position").value = showRange(edit.position);
    byId("edit-key").value = showRange(edit.key);
    byId("edit-source").value = edit.source.kind;
    const { layer, position } = edit.source;
    byId("edit-from").value = [layer == null ? (position == null ? "" : edit.layer + 1) : layer + 1, position ?? ""]
      .join(" ")
      .trim();
    const { kind, value, values } = edit.source;
    Object.assign(this, { written: edit, kind, value, entries: values });
    for (const field of byId("edit-form").querySelectorAll("input")) field.ariaInvalid = null;
    this.arrange(edit.layer);
  }

  /** Show the fields that the hook point and the source have. */
  arrange(layer = +byId("edit-layer").value) {
    if (!this.model) return;
    const hook = byId("edit-hook").value,
      kind = byId("edit-source").value;
    // Keys and blocks cannot be combined, so they share a cell; it stays when neither applies, so that nothing jumps.
    const hasBlocks = this.about.with_blocks.includes(hook) && this.model.named_stream;
    byId("key-field").hidden = hasBlocks;
    byId("key-field").style.visibility = this.about.with_keys.includes(hook) ? "" : "hidden";
    byId("block-field").hidden = !hasBlocks;
    byId("head-field").hidden = this.model.heads < 2;
    byId("head-field").style.visibility = this.about.with_blocks.includes(hook) ? "hidden" : "";
    byId("from-field").style.visibility = RUNS.includes(kind) ? "" : "hidden";
    const there = this.model.blocks.filter(
      ({ reads, writes }) =>
        ({ resid_pre: layer >= reads, attn_out: writes === layer, resid_post: layer + 1 >= reads || writes === layer })[
          hook
        ] ?? true,
    );
    fill(byId("edit-block"), [["", "all of it"], ...there.map(({ name }) => [name, name])]);
    this.sliders(hook, kind);
  }

  /** Sliders for the values of the source: one number, the block's entries, or weights. */
  sliders(hook, kind) {
    const block = this.model.blocks.find(({ name }) => name === byId("edit-block").value);
    const width = { weights: this.model.order, values: block?.width ?? 0 }[kind] ?? 0;
    const shape = `${kind} ${width} ${this.store.state.selected}`;
    if (kind !== this.kind) Object.assign(this, { kind, value: FIRST[kind], entries: null });
    if (this.entries?.length !== width) this.entries = width ? Array(width).fill(1 / width) : null;
    if (shape === this.shape) {
      [...byId("edit-values").children].forEach((row, at) => row.set?.(width ? this.entries[at] : this.value));
      return;
    }
    this.shape = shape;
    const tag = (name) => `slider ${this.store.state.selected} ${name}`;
    let rows = [];
    if (kind === "share")
      rows = [
        slider("share", this.value, {}, (value) => {
          this.value = value;
          this.changed(tag("share"));
        }),
      ];
    if (kind === "number") {
      const limits = { min: -2, max: 2, step: 0.01 };
      rows = [
        slider("value", this.value, limits, (value) => {
          this.value = value;
          this.changed(tag("value"));
        }),
      ];
    }
    if (kind === "values" && !width)
      rows = [make("p", { className: "says", textContent: "Choose a block to set its entries." })];
    if (width) {
      const limits = kind === "weights" ? {} : { min: -1, max: 1, step: 0.01 };
      rows = this.entries.map((entry, at) =>
        slider(kind === "weights" ? `lag ${at + 1}` : `${at}`, entry, limits, (value) => {
          this.entries = kind === "weights" ? reweighted(this.entries, at, value) : this.entries.with(at, value);
          rows.forEach((row, other) => {
            if (other !== at) row.set(this.entries[other]);
          });
          this.changed(tag(at));
        }),
      );
    }
    byId("edit-values").replaceChildren(...rows);
  }

  show(view) {
    const { edits, selected } = this.store.state,
      { model } = view;
    const first = JSON.stringify(model) !== JSON.stringify(this.model);
    this.model = model;
    if (first) {
      const referenceName = this.store.state.model.role === "construction" ? "the checkpoint" : "the construction";
      const all = Object.entries({ ...this.about.sources, reference: referenceName });
      const sources = all.filter(([name]) => name !== "reference" || view.construction.is_known);
      fill(byId("edit-source"), sources);
      fill(
        byId("brush-source"),
        sources.filter(([name]) => !["values", "weights"].includes(name)),
        "sequence",
      );
      fill(
        byId("edit-hook"),
        model.hooks.map((name) => [name, `${this.about.hooks[name]} (${name})`]),
      );
      fill(
        byId("edit-layer"),
        Array.from({ length: model.layers }, (_, layer) => [layer, layer + 1]),
      );
      const heads = [["", "all"], ...Array.from({ length: model.heads }, (_, head) => [head, head + 1])];
      fill(byId("edit-head"), heads);
      fill(byId("shown-head"), [["", "mean over heads"], ...heads.slice(1)]);
      byId("shown-head-field").hidden = model.heads < 2;
    }
    this.list(view.edits);
    const editing = selected !== null && edits[selected];
    byId("form-title").textContent = editing ? `Edit ${selected + 1}` : "New edit";
    byId("add-edit").textContent = editing ? "Done" : "Add edit";
    if (!editing) this.written = null;
    // The form already shows its own changes to an edit, which may be newer than this answer.
    if (editing && edits[selected] !== this.written) this.write(edits[selected]);
    else this.arrange();
  }

  list(lines) {
    const { edits, selected } = this.store.state;
    const rows = edits.map((edit, index) => {
      const text = lines[index]?.text ?? "…";
      const on = make("input", { type: "checkbox", checked: edit.on !== false, ariaLabel: `Edit ${index + 1} on` });
      on.addEventListener("change", () => this.store.replaceEdit(index, { ...edit, on: on.checked }));
      const choose = make("button", { type: "button", className: "line", textContent: text });
      choose.setAttribute("aria-pressed", index === selected);
      choose.addEventListener("click", () => this.store.change({ selected: index === selected ? null : index }));
      const remove = make("button", {
        type: "button",
        className: "small",
        textContent: "×",
        ariaLabel: `Remove edit ${index + 1}`,
      });
      remove.addEventListener("click", () => this.store.removeEdit(index));
      return make("li", { className: index === selected ? "chosen" : "" }, on, choose, remove);
    });
    const focused = [...byId("edits").querySelectorAll("input,button")].indexOf(document.activeElement);
    byId("edits").replaceChildren(
      ...(rows.length ? rows : [make("li", { className: "none", textContent: "No edits: the model runs unchanged." })]),
    );
    if (focused >= 0) byId("edits").querySelectorAll("input,button")[focused]?.focus();
  }
}
