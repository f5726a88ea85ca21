// Which steps the page shows: who waits for whom, and phases by rank, of those that are chosen.
// ---- the chosen steps ----
const filters = [];  // each is called with the chosen columns, or null for all
const stepAfter = (column) => (column < columns ? data.steps[column] : data.steps[columns - 1] + data.steps_each);
const nameSteps = (first, last) => {
  const [one, other] = [data.steps[first], Math.max(stepAfter(last + 1) - 1, data.steps[first])];
  return one === other ? `step ${one}` : `steps ${one} to ${other}`;
};
// Means over the blocks of steps that the chosen ones lie in, and what they are of, said beside what shows them.
const cutBlocks = (key, range) => {
  const blocks = data.blocks[key], says = find(key + "-of");
  const say = (text) => { if (says) says.textContent = text; };
  if (!range || !blocks) {
    say("Of all measured steps" + (range ? ", whatever is chosen: the page does not hold it by steps." : "."));
    return null;
  }
  if (!blocks.means) blocks.means = unpackAll(blocks.tables);
  const [from, to] = range.map((column) => Math.floor(column / blocks.each)), count = blocks.used.length;
  const first = from * blocks.each, last = Math.min((to + 1) * blocks.each, columns) - 1;
  const used = sum(blocks.used.slice(from, to + 1));
  const wider = first < range[0] || last > range[1] ? `, the blocks that hold the chosen ${nameSteps(...range)}` : "";
  say(`Of ${nameSteps(first, last)}${wider}: ` + (used ? `${used} measured.` : "none of them is measured."));
  return (name, row) => {
    let weight = 0, total = 0;
    for (let block = from; block <= to; block += 1) {
      const value = blocks.means[name][row * count + block];
      if (!isFinite(value) || !blocks.used[block]) continue;
      weight += blocks.used[block];
      total += blocks.used[block] * value;
    }
    return weight ? total / weight : NaN;
  };
};
const milliseconds = (ns) => {
  const value = ns / 1e6;
  if (!isFinite(value)) return "n/a";
  return value === 0 ? "0" : value < 0.005 ? "<0.01" : value.toFixed(value >= 100 ? 1 : 2);
};

// ---- who waits for whom ----
const chooseWaits = () => {
  const fields = [...document.querySelectorAll("#part-who-waits td")].map((cell) => [cell, cell.textContent, cell.className]);
  filters.push((range) => {
    const mean = fields.length ? cutBlocks("who-waits", range) : null;
    const times = fields.map((_, row) => (mean ? mean("stood", row) : 0)), longest = most(times.filter(isFinite));
    fields.forEach(([cell, text, kind], row) => {
      cell.textContent = !mean ? text : times[row] ? milliseconds(times[row]) : "";
      cell.className = mean ? "h" + (Math.round(8 * times[row] / longest) || 0) : kind;
    });
  });
};

// ---- phases by rank ----
const MOST_BARS = 16;
const choosePhases = () => {
  const chosen = find("phases-chosen"), all = find("phases-all");
  if (!chosen) return;
  filters.push((range) => {
    const mean = cutBlocks("phases", range);
    chosen.hidden = !mean;
    all.hidden = !!mean;
    if (mean) chosen.replaceChildren(tabulatePhases(mean), ...drawBars(mean));
  });
};
const listPhases = () => phases.filter((name) => data.blocks.phases.tables[name]);
const fill = (row, texts, name) => {
  const title = make("th");
  title.scope = "row";
  if (phases.includes(name)) title.append(make("i", "", "p-" + name));
  title.append(name);
  row.append(title, ...texts.map((text) => (text instanceof Node ? text : make("td", text))));
};
const tabulate = (heads, kind) => {
  const table = make("table", undefined, kind), head = table.createTHead().insertRow();
  heads.forEach((text) => {
    const cell = make("th", text);
    cell.scope = "col";
    head.append(cell);
  });
  return [table, table.createTBody()];
};
const tabulatePhases = (mean) => {
  const [table, body] = tabulate(["ms", "min", "median", "max", "rank", "share"]);
  const whole = data.ranks.map((_, row) => mean("step", row)), total = sum(whole.filter(isFinite));
  [...listPhases(), "step"].forEach((name) => {
    const times = data.ranks.map((_, row) => mean(name, row)), longest = most(times.filter(isFinite));
    const known = times.filter(isFinite).sort((one, other) => one - other), half = known.length / 2;
    const median = known.length ? (known[Math.ceil(half) - 1] + known[Math.floor(half)]) / 2 : NaN;
    const rank = known.length ? String(data.ranks[times.indexOf(longest)]) : "n/a";
    const share = total ? percent(sum(known) / total) : "n/a";
    fill(body.insertRow(), [...[known[0] ?? NaN, median, longest].map(milliseconds), rank, share], name);
  });
  return table;
};
const drawBars = (mean) => {
  const everyone = data.ranks.map((rank, row) => [rank, listPhases().map((name) => mean(name, row)), mean("step", row)]);
  const longest = most(everyone.map((each) => each[2]).filter(isFinite));
  if (!listPhases().length || !(longest > 0)) return [];
  const shown = everyone.length > MOST_BARS
    ? everyone.filter((each) => isFinite(each[2])).sort((one, other) => other[2] - one[2]).slice(0, MOST_BARS) : everyone;
  const [table, body] = tabulate(["", "by phase, each bar a step", "step, ms"], "by-rank");
  shown.forEach(([rank, times, step]) => {
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg"), cell = make("td", undefined, "bar");
    picture.setAttribute("viewBox", "0 0 1000 20");
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("aria-hidden", "true");
    let at = 0;
    times.forEach((time, index) => {
      if (!(time > 0)) return;
      const part = document.createElementNS(picture.namespaceURI, "rect");
      Object.entries({ x: at, y: 0, width: 1000 * time / longest, height: 20, class: "p-" + listPhases()[index] })
        .forEach(([key, value]) => part.setAttribute(key, value));
      picture.append(part);
      at += 1000 * time / longest;
    });
    cell.append(picture);
    fill(body.insertRow(), [cell, milliseconds(step)], `rank ${rank}`);
  });
  return shown.length < everyone.length ? [table, make("p", `The ${shown.length} ranks with the longest steps.`)] : [table];
};
