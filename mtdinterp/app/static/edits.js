// The list of edits, and the form that makes a new one or changes the chosen one.

import { byId, fill, make, reweighted, slider } from "./dom.js";

const RUNS = ["sequence", "reference"];

/** "3", "3-9" or "" as [from, before] or null. */
export function parseRange(text) {
  const found = text.trim().match(/^(\d+)(?:\s*[-–:]\s*(\d+))?$/);
  if (!found) return null;
  const first = +found[1],
    last = found[2] === undefined ? first : +found[2];
  return [Math.min(first, last), Math.max(first, last) + 1];
}

export const showRange = (range) =>
  !range ? "" : range[1] === range[0] + 1 ? `${range[0]}` : `${range[0]}–${range[1] - 1}`;

export class EditsPanel {
  constructor(store, about) {
    Object.assign(this, { store, about, shape: "" });
    fill(byId("edit-hook"), Object.entries(about.hooks));
    for (const id of ["hook", "layer", "block", "head", "position", "key", "source", "from"]) {
      byId(`edit-${id}`).addEventListener("change", () => this.changed());
    }
    byId("edit-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.store.state.selected === null) this.store.addEdit(this.read());
      else this.store.change({ selected: null });
    });
    byId("new-edit").addEventListener("click", () => {
      this.store.change({ selected: null });
      byId("edit-hook").focus();
    });
    byId("clear-edits").addEventListener("click", () => {
      if (this.store.state.edits.length) this.store.change({ edits: [], selected: null });
    });
  }

  /** The form was changed: so is the chosen edit. */
  changed(tag = null) {
    const { selected } = this.store.state;
    this.arrange();
    if (selected !== null) this.store.replaceEdit(selected, this.read(), tag);
  }

  /** The edit that the form describes. */
  read() {
    const number = (id) => (byId(id).value === "" ? null : +byId(id).value);
    const hook = byId("edit-hook").value,
      kind = byId("edit-source").value;
    const source = { kind };
    if (["number", "share"].includes(kind)) source.value = this.value;
    if (["values", "weights"].includes(kind)) source.values = this.entries;
    const [fromLayer, fromPosition] = byId("edit-from")
      .value.trim()
      .split(/[\s,]+/)
      .filter(Boolean)
      .map(Number);
    if (RUNS.includes(kind) && Number.isInteger(fromLayer)) source.layer = fromLayer - 1;
    if (RUNS.includes(kind) && Number.isInteger(fromPosition)) source.position = fromPosition;
    const free = kind !== "weights";
    return {
      hook: free ? hook : "pattern",
      layer: number("edit-layer"),
      source,
      position: free ? parseRange(byId("edit-position").value) : null,
      key: free && this.about.with_keys.includes(hook) ? parseRange(byId("edit-key").value) : null,
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
    if (edit.source.value != null) this.value = edit.source.value;
    if (edit.source.values) this.entries = edit.source.values;
    this.arrange(edit.layer);
  }

  /** Show the fields that the hook point and the source have. */
  arrange(layer = +byId("edit-layer").value) {
    if (!this.model) return;
    const hook = byId("edit-hook").value,
      kind = byId("edit-source").value;
    // Keys and blocks exclude each other and share a cell, which stays where neither applies: nothing jumps.
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

  /** Sliders for what the source takes: one number, the block's entries, or weights. */
  sliders(hook, kind) {
    const block = this.model.blocks.find(({ name }) => name === byId("edit-block").value);
    const width = { weights: this.model.order, values: block?.width ?? 0 }[kind] ?? 0;
    const shape = `${kind} ${width} ${this.store.state.selected}`;
    if (width && this.entries?.length !== width) this.entries = Array(width).fill(1 / width);
    if (["number", "share"].includes(kind) && this.value === undefined) this.value = kind === "share" ? 0.5 : 0;
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
      const beside = this.store.state.model.role === "construction" ? "the checkpoint" : "the construction";
      const sources = Object.entries({ ...this.about.sources, reference: beside });
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
      fill(byId("shown-head"), [["", "mean"], ...heads.slice(1)]);
      byId("shown-head-field").hidden = model.heads < 2;
    }
    this.list(view.edits);
    const editing = selected !== null && edits[selected];
    byId("form-title").textContent = editing ? `Edit ${selected + 1}` : "New edit";
    byId("add-edit").textContent = editing ? "Done" : "Add edit";
    if (editing && !byId("edit-form").contains(document.activeElement)) this.write(edits[selected]);
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
      ...(rows.length ? rows : [make("li", { className: "none", textContent: "No edits: the model runs as it is." })]),
    );
    if (focused >= 0) byId("edits").querySelectorAll("input,button")[focused]?.focus();
  }
}
