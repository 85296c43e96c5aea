// The page: puts the panels together, asks for the view when the state changes, and hands it to them.

import { ask, Latest, Refused } from "./api.js";
import { drawBars, drawLegends } from "./charts.js";
import { byId } from "./dom.js";
import { EditsPanel } from "./edits.js";
import { EstimatorsPanel } from "./estimators.js";
import { LearnPanel } from "./learn.js";
import { Maps } from "./maps.js";
import { ModelPanel } from "./model.js";
import { ProbesPanel } from "./probes.js";
import { coneWords, drawScores } from "./scores.js";
import { SequencePanel } from "./sequence.js";
import { Sharing } from "./share.js";
import { fromFragment, Store, toFragment } from "./state.js";
import { Steering } from "./steer.js";
import { StreamPanel } from "./stream.js";
import { SweepPanel } from "./sweep.js";
import { onScheme, setLooks } from "./theme.js";

const PATIENCE = 400;
/** Milliseconds after which a missing answer is reported, with a button to cancel. */

const report = {
  say(sentence, isError = false) {
    byId("status").textContent = sentence;
    byId("status").classList.toggle("error", isError);
  },
  fail(error) {
    if (error.name === "AbortError") report.say("Cancelled.");
    else if (!(error instanceof TypeError)) report.say(error.message, true);
    else {
      // Either fetch failed, or the page has a bug.
      report.say(`The server cannot be reached, or the page failed: ${error.message}`, true);
      console.warn(error);
    }
  },
};

const store = new Store((sentence) => report.fail(new Error(sentence)));
let about, panels, maps; // set when the page has started
let view = null;
let shownState = null;
let waiting = null;

const requests = new Latest(
  async (state, signal) => {
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
  },
  ([found, begun], state) => {
    view = found;
    shownState = state;
    drawBars(view);
    document.dispatchEvent(new CustomEvent("bars", { detail: { state } }));
    drawScores(view, labels());
    byId("timing").textContent = `${Math.round(performance.now() - begun)} ms`;
    // Large data and panels farther down are requested after the bars are painted.
    requestAnimationFrame(() =>
      setTimeout(() => {
        drawLegends(view);
        for (const panel of panels) panel.show(view);
        maps.build(view);
        maps.refresh();
        cones.put(state);
        document.documentElement.dataset.ready = "yes";
      }),
    );
  },
  (error, state) => {
    // A state that was refused must be undone, because every later state would contain it and be refused too.
    if (error instanceof Refused && shownState && state === store.state) store.back(shownState);
    report.fail(error);
  },
);

const cones = new Latest(
  async (state, signal) =>
    state.selected === null || !state.edits[state.selected] ? null : ask("/api/cone", state, signal),
  (cone) => {
    maps.cone = cone;
    byId("cone-says").textContent = cone ? coneWords(cone) : "";
    maps.outline();
  },
  (error) => report.fail(error),
);

const labels = () => view.labels;

function listenToKeys() {
  byId("undo").addEventListener("click", () => store.undo());
  byId("redo").addEventListener("click", () => store.redo());
  byId("cancel").addEventListener("click", () => {
    requests.cancel();
    if (shownState) store.back(shownState);
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
  // All moves of a slider are one undo step, until it is grabbed again or loses the focus. Grabbing another slider
  // moves the focus too, perhaps after that slider's first value, so such a change of focus ends no step.
  let held = false;
  document.addEventListener("pointerdown", () => {
    held = true;
    store.settle();
  });
  for (const name of ["pointerup", "pointercancel"])
    document.addEventListener(name, () => {
      held = false;
    });
  document.addEventListener("focusout", () => {
    if (!held) store.settle();
  });
}

/** The complete state in the page's address, or null; a link that cannot be opened is reported. */
async function linked() {
  if (byId(location.hash.slice(1))) return null; // the "Skip to the charts" link, not a view
  try {
    const given = fromFragment(location.hash);
    return given && (await ask("/api/state", given));
  } catch (error) {
    report.fail(new Error(`This link cannot be opened: ${error.message}`));
    return null;
  }
}

async function start() {
  about = await ask("/api/about");
  setLooks(about.looks);
  store.mostEdits = about.most_edits;
  maps = new Maps(store, about, report);
  panels = [
    new SequencePanel(store, report),
    new EditsPanel(store, about, report),
    new StreamPanel(store),
    new Steering(store),
    new ModelPanel(store, about, report),
    new LearnPanel(store, about, report),
    new EstimatorsPanel(store, report),
    new ProbesPanel(store, about),
  ];
  new Sharing(store, () => ({ state: shownState, view, labels: labels() }), maps, report);
  const sweep = new SweepPanel(store, about, report);
  listenToKeys();
  store.onChange((state, before) => {
    if (before) report.say(""); // clear the message about the previous state
    byId("undo").disabled = !store.past.length;
    byId("redo").disabled = !store.future.length;
    requests.put(state);
  });
  store.begin((await linked()) ?? (await ask("/api/fresh", { model: { name: about.first } })));
  onScheme(() => {
    if (view) {
      drawBars(view);
      drawLegends(view);
      maps.redraw();
      sweep.draw();
      panels.forEach((panel) => panel.show(view));
    }
  });
  addEventListener("resize", () => {
    if (view) drawBars(view);
  });
  addEventListener("hashchange", async () => {
    if (location.hash === toFragment(store.state)) return;
    const state = await linked();
    if (state) store.begin(state);
    else history.replaceState(null, "", toFragment(store.state)); // keep the current state
  });
  Object.assign(window, {
    workbench: {
      store,
      requests,
      maps,
      cones,
      get view() {
        return view;
      },
      get shownState() {
        return shownState;
      },
    },
  });
}

start().catch(report.fail);
