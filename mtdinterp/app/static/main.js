// The page: puts the panels together, asks for the view when the state changes, and hands it to them.

import { ask, Latest } from "./api.js";
import { drawBars, drawLegends } from "./charts.js";
import { byId, chooseRadio, chosenRadio, fill, shown } from "./dom.js";
import { EditsPanel } from "./edits.js";
import { LearnPanel } from "./learn.js";
import { Maps } from "./maps.js";
import { SequencePanel } from "./sequence.js";
import { Sharing } from "./share.js";
import { fromFragment, Store, toFragment } from "./state.js";
import { Steering } from "./steer.js";
import { StreamPanel } from "./stream.js";
import { SweepPanel } from "./sweep.js";
import { onScheme, setLooks } from "./theme.js";

const PATIENCE = 400;
/** Milliseconds after which an answer that is still missing is worth a word and a way out. */

const store = new Store();
const report = {
  say(sentence, isError = false) {
    byId("status").textContent = sentence;
    byId("status").classList.toggle("error", isError);
  },
  fail(error) {
    if (error.name === "AbortError") report.say("Cancelled.");
    else report.say(error instanceof TypeError ? `The server cannot be reached, or the page failed: ${error.message}` : error.message, true);
    if (error instanceof TypeError) console.warn(error);
  },
};

let about, panels, maps, view = null, shownState = null, waiting = null;

const requests = new Latest(async (state, signal) => {
  const begun = performance.now();
  waiting ??= setTimeout(() => {
    report.say(`Opening ${state.model.name} …`);
    byId("cancel").hidden = byId("busy").hidden = false;
  }, PATIENCE);
  try {
    return [await ask("/api/view", state, signal), begun];
  } finally {
    clearTimeout(waiting);
    waiting = null;
    if (!byId("cancel").hidden) report.say("");
    byId("cancel").hidden = byId("busy").hidden = true;
  }
}, ([found, begun], state) => {
  view = found;
  shownState = state;
  drawBars(view, labels());
  document.dispatchEvent(new CustomEvent("bars", { detail: { state } }));
  drawScores();
  byId("timing").textContent = `${Math.round(performance.now() - begun)} ms`;
  // What is large or far from the eye comes after the bars are painted.
  requestAnimationFrame(() => setTimeout(() => {
    drawLegends(Object.keys(view.weights), labels());
    for (const panel of panels) panel.show(view);
    maps.build(view.model.layers);
    maps.refresh();
    cones.put(store.state);
    document.documentElement.dataset.ready = "yes";
  }));
}, (error) => report.fail(error));

const cones = new Latest(async (state, signal) => (
  state.selected === null || !state.edits[state.selected] ? null : ask("/api/cone", state, signal)
), (cone) => {
  maps.cone = cone;
  byId("cone-says").textContent = cone ? coneWords(cone) : "";
  maps.outline();
}, (error) => report.fail(error));

function coneWords(cone) {
  const layers = cone.layers.filter(({ rows }) => rows).map(({ layer, reached, changed, largest, where }) => (
    `layer ${layer + 1}: ${changed} of ${reached} cells it can reach changed, most by ${shown(largest, 3)} at query ${where[0]}, key ${where[1]}`));
  return `The chosen edit alone: ${[...layers, `prediction moved by ${shown(cone.moved, 3)} (KL ${shown(cone.change, 5)})`].join("; ")}.`;
}

const labels = () => ({ ...about.methods, construction: maps.beside() });

function drawScores() {
  const names = labels(), { kl, judge, change } = view;
  byId("scores-says").textContent = judge === "truth" ? "KL from the truth to each prediction; smaller is better."
    : "The truth of this sequence is unknown: KL from the exact posterior mean's prediction.";
  byId("change").textContent = shown(change);
  const difference = kl.after - kl.before;
  byId("difference").textContent = (difference > 0 ? "+" : "") + shown(difference);
  byId("clipped").textContent = `An output need not be a distribution: ${shown(view.clipped)} of the edited one was clipped.`;
  byId("scores").tBodies[0].replaceChildren(...Object.entries(kl).filter(([name]) => name !== judge).map(([name, value]) => {
    const row = document.createElement("tr");
    row.dataset.method = name;
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: names[name] }),
      Object.assign(document.createElement("td"), { textContent: shown(value, 5) }));
    return row;
  }));
}

// The model's own controls.

function showModel({ model }) {
  byId("model").value = model.name;
  chooseRadio("role", model.role);
  const { construction } = view;
  const set = (id, value, digits) => {
    if (document.activeElement !== byId(id)) byId(id).value = value;
    byId(`${id}-value`).textContent = value.toFixed(digits);
  };
  set("beta", construction.beta, 1);
  set("delta", construction.delta, 0);
  byId("beta-fit").disabled = model.beta === null || model.beta === undefined;
  const entry = about.models.find(({ name }) => name === model.name);
  byId("model-says").textContent = `${entry.architecture}, ${entry.layers} layers, m = ${entry.order}, q = ${entry.vocab_size}, T = ${entry.length}. ` +
    (construction.steps === 2 ? "Its construction takes two steps; β is that of the one-step bars." : "β and δ are the construction's.");
}

function listenToModel() {
  byId("model").addEventListener("change", async () => {
    try {
      store.change(await ask("/api/fresh", { model: { name: byId("model").value } }));
    } catch (error) { report.fail(error); }
  });
  for (const radio of document.querySelectorAll('input[name="role"]')) {
    radio.addEventListener("change", () => changeModel({ role: chosenRadio("role") }));
  }
  const changeModel = (parts, tag) => store.change({ model: { ...store.state.model, ...parts } }, tag);
  byId("beta").addEventListener("input", () => changeModel({ beta: +byId("beta").value }, "beta"));
  byId("delta").addEventListener("input", () => changeModel({ delta: +byId("delta").value }, "delta"));
  byId("beta-fit").addEventListener("click", () => changeModel({ beta: null }));
  byId("delta-reset").addEventListener("click", () => changeModel({ delta: 100 }));
  byId("shown-head").addEventListener("change", () => store.change({ head: byId("shown-head").value === "" ? null : +byId("shown-head").value }));
}

function listenToKeys() {
  byId("undo").addEventListener("click", () => store.undo());
  byId("redo").addEventListener("click", () => store.redo());
  byId("cancel").addEventListener("click", () => {
    requests.cancel();
    store.undo(); // back to what is shown
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("textarea, input:not([type=range]):not([type=radio]):not([type=checkbox])");
    if (!(event.ctrlKey || event.metaKey) || typing) return;
    const key = event.key.toLowerCase();
    if (key === "z" && !event.shiftKey) store.undo();
    else if (key === "y" || key === "z") store.redo();
    else return;
    event.preventDefault();
  });
  // A slider makes one step for undo, until it is taken up again or left. It is left by taking up another, too, and then
  // the other's first value may come before the focus goes: that is no end of anything.
  let held = false;
  document.addEventListener("pointerdown", () => { held = true; store.settle(); });
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { held = false; });
  document.addEventListener("focusout", () => { if (!held) store.settle(); });
}

async function begin() {
  try {
    const linked = fromFragment(location.hash);
    if (linked) {
      await ask("/api/view", linked); // a link that does not hold is said, and the first view shown
      return { head: null, selected: null, block: null, source: null, weights: null, position: -1, ...linked };
    }
  } catch (error) {
    report.fail(new Error(`This link cannot be opened: ${error.message}`));
  }
  return ask("/api/fresh", { model: { name: about.first } });
}

async function start() {
  about = await ask("/api/about");
  setLooks(about.looks);
  fill(byId("model"), about.models.map(({ name, zoo }) => [name, zoo ? name : `${name} (yours)`]), about.first);
  maps = new Maps(store, about, report);
  panels = [new SequencePanel(store, report), new EditsPanel(store, about), new StreamPanel(store), new Steering(store),
    new Sharing(store, about, maps, report), { show: () => showModel(store.state) }];
  new SweepPanel(store, about, report);
  new LearnPanel(store, about, report);
  listenToModel();
  listenToKeys();
  store.onChange((state, before) => {
    if (before) report.say(""); // what was said of the state before
    byId("undo").disabled = !store.past.length;
    byId("redo").disabled = !store.future.length;
    requests.put(state);
  });
  store.begin(await begin());
  onScheme(() => { if (view) { drawBars(view, labels()); drawLegends(Object.keys(view.weights), labels()); maps.redraw(); panels.forEach((panel) => panel.show(view)); } });
  addEventListener("resize", () => { if (view) drawBars(view, labels()); });
  addEventListener("hashchange", async () => {
    if (location.hash !== toFragment(store.state)) store.begin(await begin());
  });
  Object.assign(window, { workbench: { store, requests, maps, cones, get view() { return view; }, get shownState() { return shownState; } } });
}

start().catch(report.fail);
