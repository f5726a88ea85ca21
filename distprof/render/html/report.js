// Draws what the page's data block holds. Text goes into the page as text only, never as markup.
const root = document.documentElement;
const find = (id) => document.getElementById(id);
const redraws = [];
const redraw = () => redraws.forEach((draw) => draw());

const THEMES = ["auto", "light", "dark"];
let theme = 0;
const setTheme = (next) => {
  theme = next;
  root.style.colorScheme = next === 0 ? "" : THEMES[next];
  button.textContent = "theme: " + THEMES[next];
  redraw();
};
const make = (name, text, kind) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const button = make("button", "theme: auto", "theme");
button.type = "button";
button.id = "theme";
button.addEventListener("click", () => setTheme((theme + 1) % 3));
const header = document.querySelector("header");
if (header) header.append(button);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((each) => { each.open = true; });
  root.style.colorScheme = "light";
  redraw();
});
addEventListener("afterprint", () => {
  folded.forEach((each) => { each.open = false; });
  setTheme(theme);
});

// What scrolls can be reached by the keyboard.
const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => {
  if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));
document.querySelectorAll(".wide, .chart, figure, pre").forEach((each) => watch.observe(each));

const block = find("data");
if (!block) return;
const data = JSON.parse(block.textContent);
const unpack = ([unit, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, index) => {
    const level = view.getUint16(2 * index, true);
    return level === 65535 ? NaN : level * unit;
  });
};
const unpackAll = (tables) => Object.fromEntries(Object.entries(tables).map(([name, each]) => [name, unpack(each)]));
const means = unpackAll(data.means), cells = unpackAll(data.cells);
const allExcess = unpack(data.excess), most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);
const phases = Object.keys(data.colours), columns = data.steps.length, rows = Math.ceil(data.ranks.length / data.ranks_each);

const format = (ns) => {
  if (!isFinite(ns)) return "n/a";
  if (ns === 0) return "0 ms";
  const units = [[1, "ns", 0], [1e3, "us", 1], [1e6, "ms", 1], [1e9, "s", 3]];
  for (const [scale, unit, digits] of units) {
    const value = ns / scale;
    if (Math.abs(+value.toFixed(digits)) < 1000 || unit === "s") return value.toFixed(digits) + " " + unit;
  }
};
const percent = (ratio) => (100 * ratio).toFixed(1) + " %";
const sum = (values) => values.reduce((total, value) => total + value, 0);
const average = (values) => {
  const known = values.filter((value) => isFinite(value));
  return known.length ? sum(known) / known.length : NaN;
};
const quantile = (values, share) => {
  const known = values.filter((value) => isFinite(value)).sort((one, other) => one - other);
  return known.length ? known[Math.min(known.length - 1, Math.floor(share * known.length))] : NaN;
};
const ink = (name) => {  // as rgb: a canvas does not know light-dark()
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
};
const probe = make("span");
probe.hidden = true;
document.body.append(probe);
const heat = (share) => {
  const at = Math.min(Math.max(share, 0), 1) * (data.ramp.length - 1);
  const low = Math.min(Math.floor(at), data.ramp.length - 2);
  return data.ramp[low].map((part, index) => Math.round(part + (data.ramp[low + 1][index] - part) * (at - low)));
};

// A canvas as wide as the page, in the screen's own pixels.
const prepare = (canvas, height) => {
  const width = Math.max(canvas.parentElement.clientWidth, 200), ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [pen, width];
};
// Labels along a line, without those that would touch the one before.
const label = (pen, items, least, most = Infinity) => {
  let last = -Infinity;
  for (const [text, x, y, along] of items) {
    const half = along === "x" ? pen.measureText(text).width / 2 + 4 : 7;
    const at = along === "x" ? x : y;
    if (at - half < last || at - half < least || at + half > most) continue;
    pen.fillText(text, x, y);
    last = at + half;
  }
};
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);

// A cursor that the pointer and the arrow keys move over a grid.
const listen = (canvas, says, grid) => {
  let at = null;
  const tell = (next) => {
    at = next;
    says.textContent = at ? grid.describe(at) : "";
    grid.mark(at);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const next = grid.locate(event.clientX - box.left, event.clientY - box.top);
    if (next) tell(next);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [height, width] = grid.size();
    const [row, column] = at || [0, -1];
    tell([Math.min(Math.max(row + move[0], 0), height - 1), Math.min(Math.max(column + move[1], 0), width - 1)]);
  });
  redraws.push(() => { at = null; says.textContent = grid.hint || ""; });
};
const outline = (pen, x, y, width, height) => {
  pen.lineWidth = 2;
  pen.strokeStyle = ink("ink");
  pen.strokeRect(x, y, width, height);
};
