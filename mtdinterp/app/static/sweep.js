// Patch sweeps: started as a job, watched, cancelled, drawn as a heatmap whose cells can be applied.

import { ask } from "./api.js";
import { byId, fill, shown } from "./dom.js";
import { CONFIG, layout, sequential } from "./theme.js";

const EVERY = 100;
/** Milliseconds between requests for a sweep's progress. */

export class SweepPanel {
  constructor(store, about, report) {
    Object.assign(this, { store, report, job: null, result: null, cursor: [0, 0] });
    fill(byId("sweep-kind"), Object.entries(about.sweeps), "block");
    fill(byId("sweep-aim"), Object.entries(about.aims));
    byId("sweep-run").addEventListener("click", () => this.start());
    byId("sweep-cancel").addEventListener("click", () => this.cancel());
    byId("sweep-chart").addEventListener("keydown", (event) => this.key(event));
    byId("sweep-chart").addEventListener("focus", () => this.point(...this.cursor));
    addEventListener("resize", () => this.draw());
  }

  pair() {
    const { model, tokens, source } = this.store.state;
    return JSON.stringify([model, tokens, source]);
  }

  async start() {
    const state = this.store.state,
      pair = this.pair();
    this.busy(true);
    try {
      this.job = await ask("/api/sweeps", { state, kind: byId("sweep-kind").value, aim: byId("sweep-aim").value });
      const { id } = this.job;
      while (this.job.status === "running") {
        byId("sweep-progress").value = this.job.total ? this.job.done / this.job.total : 0;
        await new Promise((done) => setTimeout(done, EVERY));
        this.job = await ask(`/api/sweeps/${id}`);
      }
      if (this.job.status === "done") this.take(this.job.result, pair);
      else byId("sweep-readout").textContent = this.job.error ?? "Cancelled.";
    } catch (error) {
      this.report.fail(error);
    }
    this.busy(false);
  }

  async cancel() {
    if (this.job?.status === "running") await ask(`/api/sweeps/${this.job.id}/cancel`, {}).catch(this.report.fail);
  }

  busy(is) {
    byId("sweep-run").disabled = is;
    byId("sweep-cancel").disabled = !is;
    if (!is) byId("sweep-progress").value = this.job?.status === "done" ? 1 : 0;
  }

  take(result, pair) {
    this.result = result;
    this.of = pair;
    this.rows = [];
    result.values.forEach((positions, layer) =>
      result.parts.forEach((part, number) => {
        if (positions[0][number] !== null)
          this.rows.push({ layer, part, values: positions.map((parts) => parts[number]) });
      }),
    );
    this.cursor = this.strongest();
    this.draw();
    this.point(...this.cursor);
  }

  strongest() {
    let best = [0, 0],
      most = -1;
    this.rows.forEach(({ values }, row) =>
      values.forEach((value, position) => {
        const moved = Math.abs(value - this.result.unpatched);
        if (moved > most) [best, most] = [[row, position], moved];
      }),
    );
    return best;
  }

  name(row) {
    const { layer, part } = this.rows[row];
    return part === "all" ? `layer ${layer + 1}` : `${layer + 1} · ${part}`;
  }

  draw() {
    const chart = byId("sweep-chart");
    if (!this.rows?.length || !chart.clientWidth) return;
    const names = this.rows.map((_, row) => this.name(row)),
      length = this.rows[0].values.length;
    const largest = Math.max(1e-9, ...this.rows.flatMap(({ values }) => values));
    Plotly.react(
      chart,
      [
        {
          type: "heatmap",
          z: this.rows.map(({ values }) => values),
          zmin: 0,
          zmax: largest,
          colorscale: sequential(),
          colorbar: {
            thickness: 10,
            outlinewidth: 0,
            title: { text: "KL", font: { size: 11 } },
            tickfont: { size: 10 },
          },
          hoverinfo: "none",
        },
      ],
      layout({
        width: chart.clientWidth,
        height: chart.clientHeight,
        margin: { l: 118, r: 8, t: 8, b: 40 },
        xaxis: {
          title: { text: "position", standoff: 6 },
          showgrid: false,
          zeroline: false,
          range: [-0.5, length - 0.5],
        },
        yaxis: {
          ...this.ticks(names),
          autorange: "reversed",
          showgrid: false,
          zeroline: false,
          tickfont: { size: 11 },
        },
        shapes: [this.mark()],
      }),
      CONFIG,
    );
    if (!chart.listens) {
      chart.listens = true;
      chart.on("plotly_hover", ({ points: [{ pointNumber }] }) => this.point(...pointNumber));
      chart.on("plotly_click", ({ points: [{ pointNumber }] }) => this.apply(...pointNumber));
    }
  }

  /** A label for every row, or for every layer if there are too many rows. */
  ticks(names) {
    const all = names.map((_, row) => row);
    if (names.length <= 24) return { tickvals: all, ticktext: names };
    const firsts = all.filter((row) => row === 0 || this.rows[row].layer !== this.rows[row - 1].layer);
    return { tickvals: firsts, ticktext: firsts.map((row) => `layer ${this.rows[row].layer + 1}`) };
  }

  mark() {
    const [row, position] = this.cursor;
    return {
      type: "rect",
      x0: position - 0.5,
      x1: position + 0.5,
      y0: row - 0.5,
      y1: row + 0.5,
      line: { color: getComputedStyle(document.documentElement).getPropertyValue("--accent").trim(), width: 2 },
    };
  }

  point(row, position) {
    if (!this.result) return;
    this.cursor = [row, position];
    const stale = this.of === this.pair() ? "" : " The model or a sequence has changed since.";
    byId("sweep-readout").textContent =
      `${this.name(row)}, position ${position}: KL ${shown(this.rows[row].values[position], 5)}` +
      ` (unpatched ${shown(this.result.unpatched, 5)}).${stale}`;
    Plotly.relayout(byId("sweep-chart"), { shapes: [this.mark()] });
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!this.result) return;
    if (step) {
      const [row, position] = this.cursor,
        length = this.rows[0].values.length;
      const clamp = (value, most) => Math.max(0, Math.min(most, value));
      this.point(clamp(row + step[0], this.rows.length - 1), clamp(position + step[1], length - 1));
    } else if (event.key === "Enter" || event.key === " ") this.apply(...this.cursor);
    else return;
    event.preventDefault();
  }

  /** The patch of a cell as an edit. */
  apply(row, position) {
    const { layer, part } = this.rows[row],
      { kind } = this.result;
    if (this.of !== this.pair()) return;
    const hook = { block: "resid_pre", resid_pre: "resid_pre", attn_out: "attn_out", head: "z" }[kind];
    this.point(row, position);
    this.store.addEdit({
      hook,
      layer,
      position: [position, position + 1],
      key: null,
      on: true,
      head: kind === "head" ? +part.slice(1) - 1 : null,
      block: kind === "block" ? part : null,
      source: { kind: "sequence" },
    });
  }
}
