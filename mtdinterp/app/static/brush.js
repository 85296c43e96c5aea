// Pointer and keyboard input in the maps: patch a row, a cell or a range, or move rows from one map to another.

import { byId, chosenRadio } from "./dom.js";

export class Brush {
  constructor(store, maps) {
    Object.assign(this, { store, maps, range: null, over: null });
    document.addEventListener("pointermove", (event) => this.drag(event));
    document.addEventListener("pointerup", (event) => this.drop(event));
    document.addEventListener("pointercancel", () => this.forget());
  }

  listen(map) {
    map.above.addEventListener("pointerdown", (event) => this.press(event, map));
    map.above.addEventListener("keydown", (event) => this.key(event, map));
  }

  press(event, map) {
    if (event.button || !this.maps.length) return;
    const start = this.maps.cell(event, map);
    this.range = { map, start, end: start, x: event.clientX, y: event.clientY };
    map.above.focus({ preventScroll: true });
    event.preventDefault();
    this.maps.outline();
  }

  drag(event) {
    if (!this.range || this.range.byKeys) return;
    const { map } = this.range;
    const over = document.elementFromPoint(event.clientX, event.clientY)?.closest(".map")?.map;
    this.over?.figure.classList.remove("target");
    this.over = over && this.canGive(map, over) ? over : null;
    this.over?.figure.classList.add("target");
    if (over === map) this.range.end = this.maps.cell(event, map);
    else if (this.over) this.range.end = this.range.start; // outline what will be copied
    this.maps.outline();
  }

  drop(event) {
    const { range } = this;
    if (!range || range.byKeys) return;
    const over = document.elementFromPoint(event.clientX, event.clientY)?.closest(".map")?.map;
    this.forget();
    if (over === range.map) this.patch(range);
    else if (over && this.canGive(range.map, over)) this.give(range, over, this.maps.cell(event, over));
  }

  forget() {
    this.over?.figure.classList.remove("target");
    this.range = this.over = null;
    this.maps.outline();
  }

  canGive(from, to) {
    return ["source", "reference"].includes(from.which) && ["before", "after"].includes(to.which);
  }

  key(event, map) {
    const step = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -this.maps.length],
      End: [0, this.maps.length],
      PageUp: [-8, 0],
      PageDown: [8, 0],
    }[event.key];
    const [query, key] = this.maps.cursor ?? [0, 0];
    if (step) {
      const clamp = (value) => Math.max(this.maps.first, Math.min(this.maps.length - 1, value));
      const next = [clamp(query + step[0]), clamp(key + step[1])];
      if (event.shiftKey) this.range = { map, start: this.range?.start ?? [query, key], end: next, byKeys: true };
      else this.range = null;
      this.maps.point(map, ...next);
    } else if (event.key === "Enter" || event.key === " ") {
      const range = this.range ?? { map, start: [query, key], end: [query, key] };
      this.range = null;
      this.patch(range);
    } else if (event.key === "Escape") {
      this.forget();
    } else return;
    event.preventDefault();
  }

  spans({ start, end }) {
    const span = (one, other) => [Math.min(one, other), Math.max(one, other) + 1];
    const rows = span(start[0], end[0]);
    return [rows, chosenRadio("brush") === "cell" ? span(start[1], end[1]) : [0, rows[1]]];
  }

  /** Patch the selected range of a map, from that map's own run or from the source chosen above the maps. */
  patch(range) {
    const { map } = range;
    const kind = { source: "sequence", reference: "reference" }[map.which] ?? byId("brush-source").value;
    const [position, keys] = this.spans(range);
    const byCell = chosenRadio("brush") === "cell" || kind === "share";
    const key = byCell ? (chosenRadio("brush") === "cell" ? keys : [range.start[1], range.start[1] + 1]) : null;
    const value = { share: 0.5, number: 0 }[kind];
    this.put({
      hook: "pattern",
      layer: map.layer,
      position,
      key,
      head: this.store.state.head,
      block: null,
      on: true,
      source: { kind, ...(value === undefined ? {} : { value }) },
    });
  }

  /** Copy a row or cell that was dragged from one map onto another; it keeps its offsets. */
  give({ map, start: [row, column] }, to, [query]) {
    const key = query - (row - column);
    const byCell = chosenRadio("brush") === "cell";
    if (byCell && (key < 0 || key > query)) return; // this query has no such offset
    this.put({
      hook: "pattern",
      layer: to.layer,
      position: [query, query + 1],
      head: this.store.state.head,
      key: byCell ? [key, key + 1] : null,
      block: null,
      on: true,
      source: {
        kind: map.which === "source" ? "sequence" : "reference",
        layer: map.layer,
        position: row,
      },
    });
  }

  /** Add an edit. It replaces an edit of the same place; adding the same edit again removes it. */
  put(edit) {
    const { edits } = this.store.state;
    const place = (other) => JSON.stringify([other.hook, other.layer, other.position, other.key, other.head]);
    const index = edits.findIndex((other) => other.source.kind !== "weights" && place(other) === place(edit));
    if (index < 0) this.store.addEdit(edit);
    else if (JSON.stringify(edits[index].source) === JSON.stringify(edit.source)) this.store.removeEdit(index);
    else this.store.replaceEdit(index, edit);
  }
}
