// The sequence and its source as strips of tokens, typed, sampled or changed one by one.

import { ask } from "./api.js";
import { byId, make, reweighted, slider } from "./dom.js";

const draw = (model, length, weights) =>
  ask("/api/sample", { model, length, weights, seed: Math.floor(Math.random() * 2 ** 31) });

/** Scroll the strip to a token without scrolling the page. */
function reveal(token, strip) {
  const [inner, outer] = [token, strip].map((element) => element.getBoundingClientRect());
  strip.scrollTop += Math.min(0, inner.top - outer.top) + Math.max(0, inner.bottom - outer.bottom);
}

export class SequencePanel {
  constructor(store, report) {
    Object.assign(this, { store, report, chosen: null });
    for (const id of ["tokens", "source"]) {
      byId(id).addEventListener("click", (event) => {
        const token = event.target.closest("span");
        if (token) this.look([...byId(id).children].indexOf(token));
      });
      byId(id).addEventListener("keydown", (event) => this.key(event, id));
    }
    byId("typed").addEventListener("change", () => this.typed("tokens", byId("typed").value));
    byId("typed-source").addEventListener("change", () => this.typed("source", byId("typed-source").value));
    byId("sample").addEventListener("click", () => this.sample(null));
    byId("sample-chosen").addEventListener("click", () => this.sample(this.chosen));
    byId("sample-source").addEventListener("click", () => this.sampleSource());
    byId("length").addEventListener("change", () => this.sample(null));
  }

  look(position) {
    this.store.change({ position });
  }

  key(event, id) {
    const { state } = this.store,
      tokens = state[id];
    if (!tokens) return;
    const at = this.at(),
      step = { ArrowLeft: -1, ArrowRight: 1, Home: -tokens.length, End: tokens.length }[event.key];
    if (step) this.look(Math.max(0, Math.min(tokens.length - 1, at + step)));
    else if (/^[0-9]$/.test(event.key) && !event.ctrlKey && !event.metaKey && +event.key < this.model?.vocab_size) {
      const changed = tokens.with(at, +event.key);
      this.store.change({ [id]: changed, position: Math.min(tokens.length - 1, at + 1) });
    } else return;
    event.preventDefault();
  }

  at() {
    const { position, tokens } = this.store.state;
    return position < 0 ? tokens.length + position : position;
  }

  /** Set typed tokens, separated or as a row of digits. A new length removes the source and edits of positions. */
  typed(id, text) {
    const words = text
      .trim()
      .split(/[\s,;]+/)
      .filter(Boolean);
    const separated = words.length === 1 && this.model?.vocab_size <= 10 ? [...words[0]] : words;
    const tokens = separated.map(Number);
    const other = this.store.state.tokens.length;
    if (!tokens.length && id === "source") this.store.change({ source: null });
    else if (
      !tokens.length ||
      tokens.some((token) => !Number.isInteger(token) || token < 0 || token >= this.model.vocab_size)
    ) {
      this.report.fail(new Error(`Tokens are the numbers 0 to ${this.model.vocab_size - 1}, separated by spaces.`));
    } else if (id === "source" && tokens.length !== other) {
      this.report.fail(new Error(`The source needs ${other} tokens like the sequence, got ${tokens.length}.`));
    } else this.replace(id, tokens, id === "tokens" ? { weights: null } : {});
  }

  replace(id, tokens, others) {
    const { state } = this.store,
      parts = { [id]: tokens };
    if (id === "tokens" && tokens.length !== state.tokens.length) {
      parts.source = null;
      parts.position = -1;
      parts.edits = state.edits.filter(({ position, key, source }) => !position && !key && source.kind !== "sequence");
      parts.selected = null;
    }
    this.store.change({ ...parts, ...others });
  }

  /** Sample a sequence, and a source if none has its length, as one undo step. */
  async sample(weights) {
    try {
      const found = await this.store.answerFor(async ({ model, tokens, source }) => {
        const length = +byId("length").value || tokens.length;
        const drawn = await draw(model, length, weights);
        return { ...drawn, source: source?.length === length ? source : await this.drawSource(model, drawn.tokens) };
      });
      if (found) this.replace("tokens", found.tokens, { weights: found.weights, source: found.source });
    } catch (error) {
      this.report.fail(error);
    }
  }

  async sampleSource() {
    try {
      const source = await this.store.answerFor(({ model, tokens }) => this.drawSource(model, tokens));
      if (source) this.store.change({ source });
    } catch (error) {
      this.report.fail(error);
    }
  }

  /** Sample a source for a sequence, with the same last tokens if requested. */
  async drawSource(model, tokens) {
    const { order } = this.model,
      drawn = await draw(model, tokens.length, null);
    return byId("same-end").checked ? [...drawn.tokens.slice(0, -order), ...tokens.slice(-order)] : drawn.tokens;
  }

  show(view) {
    this.model = view.model;
    const { tokens, source, weights } = this.store.state,
      at = this.at();
    for (const [id, values] of [
      ["tokens", tokens],
      ["source", source ?? []],
    ])
      this.strip(byId(id), values, at);
    byId("length").max = view.model.longest;
    byId("length").min = view.model.exact_length ? view.model.longest : view.model.order + 1;
    if (document.activeElement !== byId("length")) byId("length").value = tokens.length;
    if (document.activeElement !== byId("typed")) byId("typed").value = tokens.join(" ");
    if (document.activeElement !== byId("typed-source")) byId("typed-source").value = (source ?? []).join(" ");
    if (this.chosen?.length !== view.model.order)
      this.sliders(weights ?? Array(view.model.order).fill(1 / view.model.order));
  }

  strip(strip, values, at) {
    const { order } = this.model;
    while (strip.children.length > values.length) strip.lastChild.remove();
    while (strip.children.length < values.length) {
      strip.append(make("span", { role: "option", id: `${strip.id}-${strip.children.length}` }));
    }
    values.forEach((value, index) => {
      const token = strip.children[index];
      if (token.textContent !== `${value}`) token.textContent = value;
      token.className = index >= values.length - order ? "lag" : "";
      if (index === at && token.ariaSelected !== "true") reveal(token, strip);
      token.setAttribute("aria-selected", index === at);
      token.title = `position ${index}`;
    });
    strip.classList.toggle("wide-tokens", this.model.vocab_size > 10);
    if (values.length) strip.setAttribute("aria-activedescendant", `${strip.id}-${at}`);
  }

  /** Sliders for the weights to sample with; they always sum to one. */
  sliders(weights) {
    this.chosen = weights;
    const rows = weights.map((weight, lag) =>
      slider(`lag ${lag + 1}`, weight, {}, (value) => {
        this.chosen = reweighted(this.chosen, lag, value);
        rows.forEach((row, other) => {
          if (other !== lag) row.set(this.chosen[other]);
        });
      }),
    );
    byId("sample-weights").replaceChildren(...rows);
  }
}
