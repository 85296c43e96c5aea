// The state of the page: it is sent to the server, stored in the link, and restored by undo.

const bytesToText = (bytes) => btoa(String.fromCharCode(...bytes));

/** The state as a link's fragment: its JSON in URL-safe base64. */
export function toFragment(state) {
  const text = bytesToText(new TextEncoder().encode(JSON.stringify(state)));
  return "#" + text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export function fromFragment(fragment) {
  if (fragment.length < 2) return null;
  const text = atob(fragment.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
}

const CALM = 150;
/** Milliseconds without a change after which the link is updated; browsers limit how often that may happen. */
const LOOKING = ["position", "block", "selected", "head"];
/** Parts of the state that only select what is shown; changing them is not an undo step. */

export class Store {
  /** `refuse` is called with a sentence if a change is not possible. */
  constructor(refuse) {
    Object.assign(this, { state: null, listeners: [], questions: 0, refuse });
    this.forget();
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /** Start with a state and an empty history. */
  begin(state) {
    this.forget();
    this.apply(state);
  }

  /** `dropped` holds the states that could be redone before the last change. */
  forget() {
    Object.assign(this, { past: [], future: [], dropped: [], tag: null });
  }

  /** Change parts of the state. Consecutive changes with the same tag, such as a slider's, are undone together. */
  change(parts, tag = null) {
    const next = { ...this.state, ...parts };
    if (Object.keys(parts).some((name) => !LOOKING.includes(name))) {
      if (tag === null || tag !== this.tag) {
        this.past.push(this.state);
        this.dropped = this.future;
      }
      this.future = [];
      this.tag = tag;
    }
    this.apply(next);
  }

  /** The address of this state. */
  get link() {
    return location.origin + location.pathname + toFragment(this.state);
  }

  /** End an interaction, so that the next change is a separate undo step. */
  settle() {
    this.tag = null;
  }

  undo() {
    this.step(this.past, this.future);
  }

  redo() {
    this.step(this.future, this.past);
  }

  step(from, to) {
    if (!from.length) return;
    to.push(this.state);
    this.tag = null;
    this.apply(from.pop());
  }

  /** Return to an earlier state and discard all later changes. */
  back(state) {
    for (const states of [this.past, this.future]) {
      const at = states.indexOf(state);
      if (at < 0) continue;
      if (states === this.past && at === this.past.length - 1 && !this.future.length) this.future = this.dropped;
      states.length = at;
      this.tag = null;
    }
    this.apply(state);
  }

  /** Whether a state equals the current one, apart from the parts that only select what is shown. */
  isAt(state) {
    return Object.keys(state).every((name) => LOOKING.includes(name) || state[name] === this.state[name]);
  }

  /** The answer to a request about the state, or null if the state changed or a newer request was made meanwhile. */
  async answerFor(request) {
    const { state } = this,
      number = ++this.questions;
    const answer = await request(state);
    return number === this.questions && this.isAt(state) ? answer : null;
  }

  apply(state) {
    const before = this.state;
    this.state = state;
    clearTimeout(this.renewal);
    this.renewal = setTimeout(() => history.replaceState(null, "", toFragment(state)), CALM);
    for (const listener of this.listeners) listener(state, before);
  }

  // Edits.

  addEdit(edit, tag = null) {
    const edits = [...this.state.edits, edit];
    if (edits.length > this.mostEdits) this.refuse(`A view can have at most ${this.mostEdits} edits; remove one first.`);
    else this.change({ edits, selected: edits.length - 1 }, tag);
  }

  replaceEdit(index, edit, tag = null) {
    this.change({ edits: this.state.edits.map((other, number) => (number === index ? edit : other)) }, tag);
  }

  removeEdit(index) {
    const edits = this.state.edits.filter((_, number) => number !== index);
    this.change({ edits, selected: null });
  }
}
