// Colours for the light and dark schemes, and settings that all charts share.

const dark = matchMedia("(prefers-color-scheme: dark)");
export const onScheme = (listener) => dark.addEventListener("change", listener);

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let looks = {};
export const setLooks = (given) => {
  looks = given;
};

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const hex = (values) => "#" + values.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("");
const mix = (one, other, share) => hex(channels(one).map((value, at) => value + share * (channels(other)[at] - value)));
const lightness = (colour) => channels(colour).reduce((sum, value, at) => sum + value * [0.3, 0.59, 0.11][at], 0);

/** A colour that is readable on the page: dark colours are lightened on a dark page. */
export function readable(colour) {
  if (!dark.matches) return colour;
  return lightness(colour) < 60
    ? mix(colour, "#ffffff", 0.85)
    : lightness(colour) < 110
      ? mix(colour, "#ffffff", 0.35)
      : colour;
}

/** The colour of a method's bars. Heads have lighter shades of the edited model's colour. */
export function barColour(name) {
  if (name === "truth") return variable("--ink");
  const head = name.match(/^head_(\d+)$/);
  if (head) return mix(readable(looks.after), variable("--card"), 0.3 + 0.35 * ((head[1] - 1) % 2));
  return readable(looks[name]);
}

const blank = () => variable("--map-none");
const full = () => variable("--map-all");

/** Scale for attention: no attention has the page's colour. The square root makes small, averaging values visible. */
export function sequential() {
  return Array.from({ length: 33 }, (_, step) => [step / 32, mix(blank(), full(), Math.sqrt(step / 32))]);
}

/** Scale for changes, from -1 to 1: red is a decrease, blue an increase. */
export function diverging() {
  const [down, up] = [variable("--down"), variable("--up")];
  return Array.from({ length: 33 }, (_, step) => {
    const at = step / 16 - 1;
    return [step / 32, mix(blank(), at < 0 ? down : up, Math.sqrt(Math.abs(at)))];
  });
}

export function layout(extra = {}) {
  const ink = variable("--soft"),
    line = variable("--line");
  const axis = { color: ink, gridcolor: line, zerolinecolor: line, linecolor: line, fixedrange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: ink },
    margin: { l: 40, r: 8, t: 8, b: 36 },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}

export const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false };
