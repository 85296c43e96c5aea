// Small helpers for the document.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "dataset") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Fill a select with [value, text] pairs, keeping the choice if it still exists. */
export function fill(select, options, chosen = select.value) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

export const chosenRadio = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
export const chooseRadio = (name, value) => {
  document.querySelector(`input[name="${name}"][value="${value}"]`).checked = true;
};

/** A number as text with four digits, or a dash if there is none. */
export function shown(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}

const short = (value) => (+value).toFixed(2);

/** A labelled slider with its value next to it. */
export function slider(name, value, { min = 0, max = 1, step = 0.01 } = {}, change) {
  const id = `slider-${Math.random().toString(36).slice(2)}`;
  const input = make("input", { type: "range", id, min, max, step });
  input.value = value;
  const output = make("output", { for: id, textContent: short(value) });
  input.addEventListener("input", () => {
    output.textContent = short(input.value);
    change(+input.value);
  });
  const row = make("div", { className: "slider" }, make("label", { htmlFor: id, textContent: name }), input, output);
  row.set = (next) => {
    if (document.activeElement !== input) input.value = next;
    output.textContent = short(next);
  };
  return row;
}

/** Weights that sum to one: one of them is set, and the others keep their proportions. */
export function reweighted(weights, index, value) {
  const rest = weights.reduce((sum, weight, other) => sum + (other === index ? 0 : weight), 0);
  const raw = weights.map((weight, other) => {
    if (other === index) return value;
    return rest > 1e-9 ? (weight * (1 - value)) / rest : (1 - value) / (weights.length - 1);
  });
  const total = raw.reduce((sum, weight) => sum + weight, 0);
  return raw.map((weight) => weight / total);
}
