// Export and sharing: the link, the code, the figure, the numbers, the report.

import { ask, askText } from "./api.js";
import { barTraces, lagNames, tokenNames } from "./charts.js";
import { byId, make } from "./dom.js";
import { layout, sequential } from "./theme.js";

export class Sharing {
  /** `shown` returns the state on the screen, its view, and the labels of its methods. */
  constructor(store, shown, maps, report) {
    Object.assign(this, { store, shown, maps, report });
    byId("copy-link").addEventListener("click", () => this.copy(this.store.link, "Link copied to the clipboard."));
    byId("copy-python").addEventListener("click", () => this.python().catch(report.fail));
    for (const button of byId("export").querySelectorAll("button")) {
      button.addEventListener("click", () => {
        byId("export").open = false;
        this.export(button.dataset.export).catch(report.fail);
      });
    }
  }

  async copy(text, sentence) {
    try {
      await navigator.clipboard.writeText(text);
      this.report.say(sentence);
    } catch {
      this.report.say("The browser denies access to the clipboard; copy from the address bar or the dialog.");
    }
  }

  async python() {
    const { code } = await ask("/api/python", this.shown().state);
    const close = make("button", { type: "button", textContent: "Close" });
    const again = make("button", { type: "button", className: "primary", textContent: "Copy" });
    const text = make("textarea", {
      readOnly: true,
      value: code,
      spellcheck: false,
      id: "python-code",
      ariaLabel: "Python code",
    });
    const dialog = make(
      "dialog",
      { className: "code", ariaLabel: "This view as Python" },
      make("h2", { textContent: "This view as Python" }),
      text,
      make("div", { className: "row" }, again, close),
    );
    again.addEventListener("click", () => this.copy(code, "Code copied to the clipboard."));
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    text.setSelectionRange(0, 0);
    text.scrollTop = 0;
    await this.copy(code, "Code copied to the clipboard.");
  }

  async export(kind) {
    const { state, view, labels } = this.shown();
    const name = `${state.model.name.replaceAll("/", "-")}-view`;
    if (kind === "json")
      this.save(`${name}.json`, "application/json", JSON.stringify({ state, labels, ...view }, null, 1));
    if (kind === "csv") this.save(`${name}.csv`, "text/csv", this.csv());
    if (kind === "html") this.save(`${name}.html`, "text/html", await askText("/api/report", state));
    if (kind === "svg" || kind === "png") {
      const { data, layout: size } = this.figure();
      const picture = await Plotly.toImage(
        { data, layout: size },
        { format: kind, width: size.width, height: size.height, scale: kind === "png" ? 2 : 1 },
      );
      this.save(`${name}.${kind}`, null, picture);
    }
    this.report.say("Saved.");
  }

  save(name, type, content) {
    const href = type ? URL.createObjectURL(new Blob([content], { type })) : content;
    make("a", { href, download: name }).click();
    if (type) setTimeout(() => URL.revokeObjectURL(href), 1000);
  }

  /** Long format: one number per line. */
  csv() {
    const { view, labels } = this.shown(),
      lines = [["what", "method", "entry", "value"]];
    const add = (what, series, methods, names) =>
      Object.entries(series).forEach(([method, values]) =>
        values.forEach((value, at) => lines.push([what, methods[method], names[at], value ?? ""])),
      );
    add("weights", view.weights, view.weight_labels, lagNames(view.model.order));
    add("prediction", view.predictions, labels, tokenNames(view.model.vocab_size));
    Object.entries(view.kl).forEach(([method, value]) =>
      lines.push([`kl from ${labels[view.judge]}`, labels[method], "", value ?? ""]),
    );
    lines.push(["kl before to after", "", "", view.change ?? ""]);
    view.blocks.forEach((block) =>
      ["before", "after"].forEach((when) =>
        block[when].forEach((value, at) => lines.push([`block ${block.name}`, labels[when], at, value ?? ""])),
      ),
    );
    const quoted = (cell) => (`${cell}`.includes(",") ? `"${cell}"` : cell);
    return lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  }

  /** Bars and maps as one figure. */
  figure() {
    const { maps } = this,
      { view, labels } = this.shown(),
      { length } = maps,
      { layers } = view.model;
    const columns = ["before", "after", "reference", "source"].filter((which) => maps.data[which]);
    const rows = layers,
      top = 0.3,
      cell = [1 / columns.length, (1 - top - 0.06) / rows],
      gap = 0.03;
    const data = [
      ...barTraces(view.weights, lagNames(view.model.order), view.weight_labels),
      ...barTraces(view.predictions, tokenNames(view.model.vocab_size), labels, {
        xaxis: "x2",
        yaxis: "y2",
      }).map((trace) => ({ ...trace, showlegend: false })),
    ];
    const title = (text) => ({ text, font: { size: 11 }, standoff: 4 });
    const size = {
      width: 260 * columns.length + 80,
      height: 380 + 280 * rows,
      showlegend: true,
      bargap: 0.2,
      margin: { l: 50, r: 20, t: 60, b: 50 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { domain: [0, 0.48], type: "category", title: title("in-context weights") },
      yaxis: { domain: [1 - top + 0.04, 1] },
      xaxis2: { domain: [0.54, 1], type: "category", title: title("prediction of the next token") },
      yaxis2: { domain: [1 - top + 0.04, 1], anchor: "x2" },
    };
    columns.forEach((which, column) =>
      Array.from({ length: layers }).forEach((_, layer) => {
        const number = 3 + column * layers + layer,
          start = layer * length * length;
        const bottom = 1 - top - 0.06 - (layer + 1) * cell[1];
        data.push({
          type: "heatmap",
          xaxis: `x${number}`,
          yaxis: `y${number}`,
          zmin: 0,
          zmax: 1,
          colorscale: sequential(),
          showscale: false,
          z: Array.from({ length }, (_, query) =>
            Array.from(maps.data[which].subarray(start + query * length, start + (query + 1) * length)),
          ),
        });
        const words = which === "reference" ? maps.referenceName() : which === "source" ? "source sequence" : which;
        size[`xaxis${number}`] = {
          domain: [column * cell[0] + gap / 2, (column + 1) * cell[0] - gap / 2],
          anchor: `y${number}`,
          title: title(`layer ${layer + 1}, ${words}: key`),
        };
        size[`yaxis${number}`] = {
          domain: [bottom + 0.05 / rows + 0.02, bottom + cell[1]],
          anchor: `x${number}`,
          autorange: "reversed",
          title: title("query"),
        };
      }),
    );
    const look = layout(size);
    return { data, layout: { ...look, paper_bgcolor: getComputedStyle(document.body).backgroundColor } };
  }
}
