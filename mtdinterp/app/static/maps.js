// Attention maps: plotly draws them; an overlay outlines the cells under the pointer, edited cells and the cone.

import { askBytes, Latest } from "./api.js";
import { Brush } from "./brush.js";
import { byId, chooseRadio, chosenRadio, make, shown } from "./dom.js";
import { CONFIG, diverging, layout, sequential } from "./theme.js";

const COLUMNS = ["before", "after", "reference", "source"];
const MARGIN = { l: 38, r: 4, t: 4, b: 34 };
const SVG = "http://www.w3.org/2000/svg";

export class Maps {
  constructor(store, about, report) {
    Object.assign(this, { store, about, report, maps: [], data: {}, keys: {}, cone: null, cursor: null, length: 0 });
    this.brush = new Brush(store, this);
    this.visible = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          target.map.visible = isIntersecting;
          if (isIntersecting) this.draw(target.map);
        }
      },
      { rootMargin: "200px" },
    );
    this.requests = new Latest(
      ({ state, which }, signal) => askBytes("/api/maps", { state, which }, signal),
      (bytes, input) => this.take(bytes, input),
      report.fail,
    );
    for (const name of ["after", "column"]) {
      document.querySelectorAll(`input[name="${name}"]`).forEach((radio) =>
        radio.addEventListener("change", () => {
          byId("maps").dataset.column = chosenRadio("column");
          this.refresh();
          this.redraw();
        }),
      );
    }
    byId("maps").dataset.column = chosenRadio("column");
    byId("window").addEventListener("change", () => this.redraw());
    addEventListener("resize", () => this.redraw());
  }

  /** One map per layer and column; without a reference, its column is left out. */
  build({ model: { layers, heads }, construction: { is_known } }) {
    this.heads = heads;
    if (this.layers === layers && this.hasReference === is_known) return;
    this.layers = layers;
    this.hasReference = is_known;
    const columns = COLUMNS.filter((which) => which !== "reference" || is_known);
    byId("maps").style.setProperty("--columns", columns.length);
    const choice = document.querySelector('input[name="column"][value="reference"]');
    choice.parentElement.hidden = !is_known;
    if (choice.checked && !is_known) chooseRadio("column", "after");
    byId("maps").dataset.column = chosenRadio("column");
    this.cursor = this.pointed = null;
    this.visible.disconnect();
    this.maps = [];
    byId("maps").replaceChildren();
    for (let layer = 0; layer < layers; layer += 1) {
      for (const which of columns) this.maps.push(this.one(layer, which));
    }
  }

  one(layer, which) {
    const plot = make("div", { className: "plot" });
    const above = document.createElementNS(SVG, "svg");
    above.setAttribute("class", "above");
    above.setAttribute("preserveAspectRatio", "none");
    above.setAttribute("tabindex", "0");
    above.setAttribute("role", "application");
    above.setAttribute("aria-label", `Attention of layer ${layer + 1}`);
    const caption = make("figcaption");
    const figure = make(
      "figure",
      { className: "map", dataset: { layer, which } },
      caption,
      make("div", { className: "frame" }, plot, above),
    );
    const map = { layer, which, plot, above, figure, caption, visible: false, drawn: null };
    figure.map = map;
    above.addEventListener("pointermove", (event) => this.point(map, ...this.cell(event, map)));
    this.brush.listen(map);
    above.addEventListener("focus", () => this.point(map, ...(this.cursor ?? [this.length - 1, 0])));
    byId("maps").append(figure);
    this.visible.observe(figure);
    return map;
  }

  /** The runs that are shown, each with its dependencies; a run is requested when its dependencies change. */
  wanted() {
    const { model, tokens, source, edits, head, selected } = this.store.state;
    const on = edits.filter((edit) => edit.on !== false);
    const mode = chosenRadio("after");
    const wanted = {
      before: [model, tokens, head],
      after: [model, tokens, source, on, head],
    };
    if (this.hasReference) wanted.reference = [model, tokens];
    if (source) wanted.source = [model, source, head];
    if (mode === "cone" && selected !== null) wanted.cone = [model, tokens, source, edits[selected]];
    return Object.fromEntries(Object.entries(wanted).map(([name, parts]) => [name, JSON.stringify(parts)]));
  }

  /** Request the runs that have changed, if any. */
  refresh() {
    const wanted = this.wanted();
    const which = Object.keys(wanted).filter((name) => this.keys[name] !== wanted[name]);
    for (const name of Object.keys(this.data).filter((other) => !(other in wanted))) {
      delete this.data[name];
      delete this.keys[name];
    }
    if (which.length) this.requests.put({ state: this.store.state, which, wanted, layers: this.layers });
    else this.outline();
  }

  take(bytes, { state, which, wanted, layers }) {
    const length = state.tokens.length,
      size = layers * length * length;
    which.forEach((name, number) => {
      this.data[name] = new Float32Array(bytes, 4 * number * size, size);
      this.keys[name] = wanted[name];
    });
    if (length !== this.length) {
      this.length = length;
      this.cursor = null;
    }
    this.redraw();
    this.refresh();
    if (this.cursor) this.point(this.pointed, ...this.cursor); // the values under the cursor have changed
  }

  /** The first position that is shown: 0, or the start of the window if only the last positions are shown. */
  get first() {
    const most = +byId("window").value;
    return most && this.length > most ? this.length - most : 0;
  }

  get shown() {
    return this.length - this.first;
  }

  redraw() {
    this.findChanges();
    byId("window-field").hidden = this.length <= 64;
    for (const map of this.maps) map.drawn = null;
    for (const map of this.maps) if (map.visible) this.draw(map);
    this.outline();
    this.paintScale();
  }

  /** The values of a map, and whether they are changes. */
  values(map) {
    if (map.which !== "after" || chosenRadio("after") === "after") return [this.data[map.which], false];
    return [this.changes, true];
  }

  /** Changes of all layers, and the largest change, which sets the scale of all maps. */
  findChanges() {
    const { before, after, cone } = this.data,
      mode = chosenRadio("after");
    this.changes = mode === "cone" ? cone : null;
    if (mode === "change" && before && after) this.changes = after.map((value, at) => value - before[at]);
    this.largest = Math.max(
      1e-9,
      (this.changes ?? []).reduce((most, value) => Math.max(most, Math.abs(value)), 0),
    );
  }

  draw(map) {
    const size = map.plot.clientWidth,
      length = this.length;
    if (map.drawn === size || !size || !length) return;
    const [values, isChange] = this.values(map);
    const named = { before: "before", after: "after", reference: this.referenceName(), source: "source" };
    const mode = { after: "after", change: "change", cone: "cone of the selected edit" }[chosenRadio("after")];
    const name = map.which === "after" ? mode : named[map.which];
    const caption = ` ${name}${this.headName(map)}`;
    map.caption.replaceChildren(make("b", { textContent: `Layer ${map.layer + 1}` }), caption);
    map.above.setAttribute(
      "aria-label",
      `Attention of layer ${map.layer + 1}, ${name}. Arrow keys move, with Shift they ` + "select, Enter patches.",
    );
    const { first, shown: count } = this;
    map.above.setAttribute("viewBox", `${first} ${first} ${count} ${count}`);
    map.figure.classList.toggle("empty", !values);
    if (!values) {
      map.figure.dataset.says = map.which === "source" ? "No source sequence." : "Select an edit to see its cone.";
      return;
    }
    const start = map.layer * length * length;
    const rows = Array.from({ length: count }, (_, row) =>
      Array.from({ length: count }, (_, column) =>
        column > row ? NaN : values[start + (first + row) * length + first + column],
      ),
    );
    const ticks = { tickfont: { size: 10 }, showgrid: false, zeroline: false, ticks: "", nticks: 5 };
    Plotly.react(
      map.plot,
      [
        {
          type: "heatmap",
          z: rows,
          x0: first,
          y0: first,
          zmin: isChange ? -this.largest : 0,
          zmax: isChange ? this.largest : 1,
          showscale: false,
          hoverinfo: "skip",
          colorscale: isChange ? diverging() : sequential(),
        },
      ],
      layout({
        width: size,
        height: size - MARGIN.l - MARGIN.r + MARGIN.t + MARGIN.b,
        margin: MARGIN,
        xaxis: {
          ...ticks,
          range: [first - 0.5, length - 0.5],
          title: { text: "key", font: { size: 10 }, standoff: 2 },
        },
        yaxis: {
          ...ticks,
          range: [length - 0.5, first - 0.5],
          title: { text: "query", font: { size: 10 }, standoff: 2 },
        },
      }),
      { ...CONFIG, staticPlot: true },
    );
    map.drawn = size;
  }

  /** Which head a map shows if the model has several. A reference has one; a cone is a mean over heads. */
  headName(map) {
    if (this.heads < 2 || map.which === "reference") return "";
    const { head } = this.store.state;
    const isCone = map.which === "after" && chosenRadio("after") === "cone";
    return (head ?? null) === null || isCone ? ", mean over heads" : `, head ${head + 1}`;
  }

  referenceName() {
    return this.store.state.model.role === "construction" ? "checkpoint" : "construction";
  }

  paintScale() {
    const paint = (id, colours) => {
      const stops = colours.map(([at, colour]) => `${colour} ${100 * at}%`);
      byId(id).style.background = `linear-gradient(90deg, ${stops.join(",")})`;
    };
    paint("scale", sequential());
    paint("change-scale", diverging());
    byId("change-legend").style.visibility = this.changes ? "" : "hidden";
    byId("least").textContent = `−${shown(this.largest, 3)}`;
    byId("most").textContent = `+${shown(this.largest, 3)}`;
  }

  // Outlines.

  outline() {
    // On narrow screens one column is shown at a time, and the others have no size.
    this.pixels = Math.max(...this.maps.map((map) => map.above.clientHeight), 1);
    for (const map of this.maps) {
      const marks = [];
      if (map.which === "after") marks.push(...this.editMarks(map.layer), ...this.coneMarks(map.layer));
      if (this.brush.range?.map === map) marks.push(this.rectangle(...this.brush.spans(this.brush.range), "range"));
      if (
        this.cursor &&
        (this.pointed === map || map.which !== this.pointed?.which) &&
        map.layer === this.pointed?.layer
      ) {
        const [query, key] = this.cursor;
        marks.push(this.rectangle([query, query + 1], [key, key + 1], this.pointed === map ? "cursor" : "cursor echo"));
      }
      map.above.replaceChildren(...marks);
    }
  }

  rectangle(rows, keys, name) {
    const mark = document.createElementNS(SVG, "rect");
    // The outline lies outside the cells, because inside it would hide a single row.
    const out = (1.2 * this.shown) / this.pixels;
    const values = {
      x: keys[0] - out,
      y: rows[0] - out,
      width: keys[1] - keys[0] + 2 * out,
      height: rows[1] - rows[0] + 2 * out,
      class: name,
    };
    for (const [attribute, value] of Object.entries(values)) mark.setAttribute(attribute, value);
    return mark;
  }

  editMarks(layer) {
    const { edits, selected } = this.store.state,
      all = [0, this.length];
    return edits
      .map((edit, index) => {
        if (edit.on === false || edit.layer !== layer || !this.about.with_keys.includes(edit.hook)) return null;
        const rows = edit.source.kind === "weights" ? [this.length - 1, this.length] : (edit.position ?? all);
        return this.rectangle(rows, edit.key ?? [0, rows[1]], index === selected ? "edit chosen" : "edit");
      })
      .filter(Boolean);
  }

  coneMarks(layer) {
    const found = this.cone?.layers[layer];
    if (!found?.rows || chosenRadio("after") !== "cone") return [];
    const [top, bottom] = found.rows;
    if (found.keys) return [this.rectangle(found.rows, found.keys, "reach")];
    const mark = document.createElementNS(SVG, "path");
    mark.setAttribute("d", `M0 ${top}H${top + 1}L${bottom} ${bottom}H0Z`);
    mark.setAttribute("class", "reach");
    return [mark];
  }

  // Cells.

  /** Query and key under the pointer. */
  cell(event, map) {
    const box = map.above.getBoundingClientRect();
    const at = (share) => Math.max(this.first, Math.min(this.length - 1, this.first + Math.floor(share * this.shown)));
    return [at((event.clientY - box.top) / box.height), at((event.clientX - box.left) / box.width)];
  }

  point(map, query, key) {
    if (!this.length) return;
    this.cursor = [query, key];
    this.pointed = map;
    const at = map.layer * this.length * this.length + query * this.length + key;
    const read = COLUMNS.filter((which) => this.data[which]).map(
      (which) => `${which === "reference" ? this.referenceName() : which} ${shown(this.data[which][at], 3)}`,
    );
    byId("readout").textContent =
      `Layer ${map.layer + 1}${this.headName(map)}, query ${query}, key ${key}: ` +
      (key > query ? "masked, because the key comes after the query" : `${read.join(" · ")} (offset ${query - key})`);
    this.outline();
  }
}
