// Asks the job's port every few seconds what it does, and shows it. Text goes into the page as text only.
const EVERY_MS = 2000, LATE_S = 15;
const find = (id) => document.getElementById(id);
const make = (name, text, kind) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const draw = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  return node;
};
const say = (id, text) => {
  const node = find(id);
  if (node.textContent !== text) node.textContent = text;  // a screen reader says what changes
  node.hidden = !text;
};

const showTimes = (times, label) => {
  const most = Math.max(...times), picture = draw("svg", { viewBox: "0 0 1000 80", preserveAspectRatio: "none", role: "img" });
  picture.setAttribute("aria-label", label);
  const wide = 1000 / Math.max(times.length, 40);
  times.forEach((time, index) => {
    const tall = most > 0 ? 80 * time / most : 0;
    picture.append(draw("rect", { x: index * wide, y: 80 - tall, width: Math.max(wide - 0.6, 0.4), height: tall, class: "job" }));
  });
  find("times").replaceChildren(picture);
};
const showBar = (phases, times, most) => {
  const picture = draw("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "presentation" });
  let at = 0;
  times.forEach((time, index) => {
    const wide = 1000 * time / most;
    if (wide > 0) picture.append(draw("rect", { x: at, y: 0, width: wide, height: 20, class: "p-" + phases[index] }));
    at += wide;
  });
  const cell = make("td", undefined, "bar");
  cell.append(picture);
  return cell;
};
const showRanks = ({ heads, rows, bars, phases }) => {
  const head = make("tr");
  [heads[0] === "ms" ? "rank" : heads[0], "by phase", ...heads.slice(1)].forEach((text) => {
    const cell = make("th", text);
    cell.scope = "col";
    head.append(cell);
  });
  const most = Math.max(1, ...bars.map((times) => times.reduce((total, time) => total + time, 0)));
  find("ranks").tHead.replaceChildren(head);
  find("ranks").tBodies[0].replaceChildren(...rows.map(([name, ...cells], index) => {
    const row = make("tr"), first = make("th", name);
    first.scope = "row";
    row.append(first, showBar(phases, bars[index], most), ...cells.map((text) => make("td", text)));
    return row;
  }));
  find("legend").replaceChildren(...phases.map((name) => {
    const item = make("li");
    item.append(make("i", undefined, "p-" + name), name);
    return item;
  }));
};
const show = (view) => {
  say("title", view.title);
  document.title = view.title + " - distprof";
  find("facts").replaceChildren(...view.facts.map(([label, text]) => {
    const part = make("div");
    part.append(make("dt", label), make("dd", text));
    return part;
  }));
  say("urgent", view.urgent.join(" "));
  say("verdict", view.verdict || "no report yet");
  find("card").className = view.critical ? "card critical" : "card";
  say("next", view.next);
  say("judged", view.judged);
  if (view.times.length) showTimes(view.times, view.span);
  say("span", view.span);
  if (view.ranks.rows.length) showRanks(view.ranks);
  find("live").hidden = false;
};

let asking = false;
const ask = async () => {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch("live.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    const { view, age_s: age, problem } = await answer.json();
    if (view) show(view);
    say("state", problem || (view ? (age > LATE_S ? `as of ${Math.round(age)} s ago` : "") : "reading the run folder"));
  } catch {
    say("state", "the job's port does not answer: the job has ended, or the way to it is cut; what was seen last stays");
  }
  asking = false;
};
setInterval(ask, EVERY_MS);
document.addEventListener("visibilitychange", ask);
ask();
