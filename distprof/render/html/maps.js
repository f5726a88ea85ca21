// Where and when: the heat map of ranks, and step time over the run.
// ---- where ----
const drawWhere = () => {
  const canvas = find("where");
  if (!canvas) return;
  let excess = allExcess;
  filters.push((range) => {
    const mean = cutBlocks("where", range);
    excess = mean ? data.ranks.map((_, row) => mean("excess", row)) : allExcess;
    marked = null;
    draw();
  });
  const everyone = data.ranks.map((_, position) => position);
  const byHost = () => {
    const seen = new Map();
    return everyone.map((position) => {
      const host = data.host[position], local = seen.get(host) || 0;
      seen.set(host, local + 1);
      return [host, local];
    });
  };
  const byAxis = (axis) => {
    const others = data.places.filter((_, index) => index !== axis).map(([, at]) => at);
    const keys = new Map();
    const key = (position) => others.map((at) => at[position]).join(", ");
    everyone.filter((position) => data.places[axis][1][position] !== null)
      .sort((one, other) => sum(others.map((at, index) => (at[one] - at[other]) * 1e4 ** (others.length - index))))
      .forEach((position) => { if (!keys.has(key(position))) keys.set(key(position), keys.size); });
    return everyone.map((position) => {
      const row = data.places[axis][1][position];
      return row === null ? null : [row, keys.get(key(position))];
    });
  };
  const orders = data.places.map(([name], axis) => {
    const others = data.places.filter((_, index) => index !== axis).map(([other]) => other);
    return { name, rows: (row) => `${name} ${row}`, columns: others.join(", ") || "rank", at: byAxis(axis) };
  }).filter((order) => order.at.some((at) => at && at[0] > 0));
  orders.push({ name: "host", rows: (row) => cut(data.hosts[row], 14), columns: "place on the host", at: byHost() });
  orders.sort((one, other) => (other.name === "pp") - (one.name === "pp"));
  let order = orders[0], grid, top, marked = null;
  const draw = () => {
    const size = [0, 1].map((axis) => 1 + most(order.at.map((at) => (at ? at[axis] : 0))));
    const wrap = Math.min(...size) === 1 && Math.max(...size) > 64;  // one long line, cut into rows of 64
    const flip = !wrap && size[0] > 3 * size[1] && size[0] > 16;
    const [height, width] = wrap ? [Math.ceil(Math.max(...size) / 64), 64] : flip ? [size[1], size[0]] : size;
    const available = Math.max(canvas.parentElement.clientWidth, 200);
    const left = 104, cell = Math.max(Math.min((available - left) / width, 120), 0.2);
    const tall = Math.max(Math.min(cell, 40, 600 / height), height > 40 ? 4 : 16);
    const [pen, all] = prepare(canvas, 20 + height * tall + 34);
    pen.clearRect(0, 0, all, canvas.height);
    top = Math.max(most(excess.filter(isFinite)), 0.02 * data.step_ns);
    grid = new Map();
    order.at.forEach((at, position) => {
      if (!at) return;
      const along = Math.max(...at);
      const [row, column] = wrap ? [Math.floor(along / 64), along % 64] : flip ? [at[1], at[0]] : at;
      grid.set(row + "," + column, position);
      const value = excess[position], x = left + column * cell, y = 20 + row * tall;
      const [red, green, blue] = isFinite(value) ? heat(value / top) : [190, 190, 190];
      pen.fillStyle = `rgb(${red},${green},${blue})`;
      pen.fillRect(x, y, cell > 3 ? cell - 1 : Math.max(cell, 0.7), tall > 3 ? tall - 1 : tall);
      if (cell > 58 && tall > 15) {
        pen.fillStyle = red * 0.3 + green * 0.6 + blue * 0.1 > 120 ? "#000" : "#fff";
        pen.textAlign = "center";
        pen.fillText(format(value), x + cell / 2, y + tall / 2);
      }
    });
    pen.fillStyle = ink("faint");
    const rowName = (row) => (wrap ? "from " + 64 * row : flip ? String(row) : order.rows(row));
    const columnName = (column) => (flip ? order.rows(column) : String(column));
    pen.textAlign = "right";
    label(pen, Array.from({ length: height }, (_, row) => [rowName(row), left - 8, 20 + (row + 0.5) * tall, "y"]), 0);
    pen.textAlign = "center";
    label(pen, Array.from({ length: width }, (_, column) => [columnName(column), left + (column + 0.5) * cell, 9, "x"]), left - 14, all);
    drawScale(pen, left, 20 + height * tall + 10, Math.min(160, available - left - 130), "0 ms", format(top));
    grid.shape = [height, width, left, cell, tall];
    if (marked) outline(pen, left + marked[1] * cell, 20 + marked[0] * tall, cell, tall);
    says.dataset.what = wrap ? `Along ${size[0] > 1 ? order.name : order.columns}, 64 in a row. ` : `Rows: ${flip ? order.columns : order.name}; columns: ${flip ? order.name : order.columns}. `;
  };
  const says = find("where-says");
  const controls = find("where-orders");
  orders.forEach((each) => {
    const choice = make("button", "by " + each.name);
    choice.type = "button";
    choice.setAttribute("aria-pressed", String(each === order));
    choice.addEventListener("click", () => {
      order = each;
      marked = null;
      [...controls.children].forEach((other) => other.setAttribute("aria-pressed", String(other === choice)));
      draw();
      says.textContent = says.dataset.what;
    });
    controls.append(choice);
  });
  if (!columns || !find("stack")) redraws.push(draw);
  listen(canvas, says, {
    get hint() { return says.dataset.what; },
    size: () => grid.shape,
    locate: (x, y) => {
      const [height, width, left, cell, tall] = grid.shape;
      const at = [Math.floor((y - 20) / tall), Math.floor((x - left) / cell)];
      return at[0] >= 0 && at[1] >= 0 && at[0] < height && at[1] < width ? at : null;
    },
    describe: (at) => {
      const position = grid.get(at.join(","));
      if (position === undefined) return "no rank here";
      const place = data.places.map(([name, all]) => `${name} ${all[position]}`).join(", ");
      const value = excess[position];
      const share = isFinite(value) && data.step_ns ? `, ${percent(value / data.step_ns)} of the step` : "";
      return `rank ${data.ranks[position]}${place ? ` (${place})` : ""} on ${data.hosts[data.host[position]]}: ` +
        `${format(value)} per step${share}`;
    },
    mark: (at) => { marked = at; draw(); },
  });
};
const drawScale = (pen, x, y, width, low, high) => {
  for (let at = 0; at < width; at += 1) {
    pen.fillStyle = `rgb(${heat(at / width).join(",")})`;
    pen.fillRect(x + at, y, 1.5, 10);
  }
  pen.fillStyle = ink("faint");
  pen.textAlign = "right";
  pen.fillText(low, x - 6, y + 5);
  pen.textAlign = "left";
  pen.fillText(high, x + width + 6, y + 5);
};

// ---- when ----
const drawWhen = () => {
  const stack = find("stack"), map = find("cells");
  if (!stack || !columns) return;
  const from = find("from"), to = find("to"), chosen = find("chosen"), quantity = find("quantity");
  from.max = to.max = columns - 1;
  to.value = columns - 1;
  const left = 72, tall = 190, right = 8;
  const range = () => [+from.value, +to.value].sort((one, other) => one - other);
  const columnOf = (step) => {
    const after = data.steps.findIndex((first) => first > step);
    return after < 0 ? columns - 1 : Math.max(after - 1, 0);
  };
  let cursor = null, mapCursor = null;

  const drawStack = () => {
    const [pen, width] = prepare(stack, tall + 44);
    const wide = (width - left - right) / columns, whole = Array.from(means.step);
    const counted = whole.filter((_, column) => data.measured[column]);
    const longest = Math.max(...(counted.length ? counted : whole).filter(isFinite), 1);
    const usual = quantile(counted.length ? counted : whole, 0.5);
    const top = longest > 6 * usual ? 6 * usual : longest * 1.05;
    const y = (ns) => 8 + tall * (1 - Math.min(ns / top, 1));
    pen.clearRect(0, 0, width, tall + 44);
    whole.forEach((step, column) => {
      const x = Math.floor(left + column * wide);
      const pixels = Math.max(Math.floor(left + (column + 1) * wide) - x - (wide > 8 ? 1 : 0), 1);
      pen.globalAlpha = data.measured[column] ? 1 : 0.4;
      let below = 0;
      if (!isFinite(step)) return;
      for (const name of phases) {
        const value = means[name][column];
        if (!(value > 0)) continue;
        pen.fillStyle = data.colours[name];
        pen.fillRect(x, y(below + value), pixels, y(below) - y(below + value));
        below += value;
      }
      if (below === 0) {
        pen.fillStyle = ink("line");
        pen.fillRect(x, y(step), pixels, y(0) - y(step));
      }
      pen.globalAlpha = 1;
      if (step > top) {
        pen.fillStyle = ink("ink");
        pen.fillRect(x, 4, Math.max(pixels, 2), 4);
      }
    });
    pen.globalAlpha = 1;
    pen.fillStyle = pen.strokeStyle = ink("faint");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    [0, 0.5, 1].forEach((part) => pen.fillText(format(part * top), left - 6, Math.max(y(part * top), 8)));
    pen.strokeRect(left - 0.5, 7.5, width - left - right + 1, tall + 1);
    pen.textAlign = "center";
    label(pen, ticks(0, columns - 1).map((column) => [String(data.steps[column]), left + (column + 0.5) * wide, tall + 20, "x"]), left - 20, width);
    data.marks.forEach(([step], index) => {
      const x = left + (columnOf(step) + 0.5) * wide;
      pen.strokeStyle = ink("ink");
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(x, 8);
      pen.lineTo(x, tall + 8);
      pen.stroke();
      pen.setLineDash([]);
    });
    label(pen, data.marks.map(([step], index) => [String.fromCharCode(65 + index), left + (columnOf(step) + 0.5) * wide, tall + 36, "x"])
      .sort((one, other) => one[1] - other[1]), 0);
    const [first, last] = range();
    pen.globalAlpha = 0.65;
    pen.fillStyle = ink("paper");
    pen.fillRect(left, 8, first * wide, tall);
    pen.fillRect(left + (last + 1) * wide, 8, (columns - 1 - last) * wide, tall);
    pen.globalAlpha = 1;
    if (cursor !== null) outline(pen, left + cursor * wide, 8, Math.max(wide, 2), tall);
    return wide;
  };
  const ticks = (first, last) => {
    const count = last - first + 1, each = Math.max(1, Math.ceil(count / 8));
    return Array.from({ length: Math.ceil(count / each) }, (_, index) => first + index * each);
  };
  const stepName = (column) => (data.steps_each > 1 ? `steps ${data.steps[column]} to ${data.steps[column] + data.steps_each - 1}` : `step ${data.steps[column]}`);

  const rankName = (row) => {
    const first = row * data.ranks_each, last = Math.min(first + data.ranks_each, data.ranks.length) - 1;
    return first === last ? `rank ${data.ranks[first]}` : `ranks ${data.ranks[first]}-${data.ranks[last]}`;
  };
  const mapTall = Math.max(Math.min(Math.floor(320 / rows), 26), 3);
  let mapWide = 1;
  const drawMap = () => {
    const [first, last] = range(), count = last - first + 1, table = cells[quantity.value];
    const [pen, width] = prepare(map, 20 + rows * mapTall + 30);
    mapWide = (width - left - 20 - right) / count;
    pen.clearRect(0, 0, width, 60 + rows * mapTall);
    if (!table) return;
    const shown = [];
    for (let row = 0; row < rows; row += 1) for (let column = first; column <= last; column += 1) if (data.measured[column] || last - first < 3) shown.push(table[row * columns + column]);
    if (!shown.length) shown.push(...table);
    const low = quantile(shown, 0), high = quantile(shown, 0.99);
    const image = new ImageData(count, rows);
    for (let row = 0; row < rows; row += 1) {
      for (let column = first; column <= last; column += 1) {
        const value = table[row * columns + column], at = 4 * (row * count + column - first);
        image.data.set(isFinite(value) ? heat((value - low) / (high - low || 1)) : [190, 190, 190], at);
        image.data[at + 3] = 255;
      }
    }
    const small = new OffscreenCanvas(count, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, left + 20, 0, width - left - 20 - right, rows * mapTall);
    pen.fillStyle = ink("faint");
    pen.textAlign = "right";
    label(pen, Array.from({ length: rows }, (_, row) => [data.ranks_each > 1 ? rankName(row).replace("ranks ", "") : rankName(row), left + 12, (row + 0.5) * mapTall, "y"]), 0);
    pen.textAlign = "center";
    label(pen, ticks(first, last).map((column) => [String(data.steps[column]), left + 20 + (column - first + 0.5) * mapWide, rows * mapTall + 10, "x"]), left, width);
    drawScale(pen, left + 20, rows * mapTall + 22, Math.min(160, width - left - 130), format(low), format(high));
    if (mapCursor) outline(pen, left + 20 + mapCursor[1] * mapWide, mapCursor[0] * mapTall, Math.max(mapWide, 2), mapTall);
  };

  const select = () => {
    const [first, last] = range(), steps = Array.from({ length: last - first + 1 }, (_, index) => first + index);
    const counted = steps.filter((column) => data.measured[column]), used = counted.length ? counted : steps;
    const all = data.steps.map((_, column) => column).filter((column) => data.measured[column]);
    chosen.textContent = first === 0 && last === columns - 1 ? "all are chosen" : `${stepName(first)} to ${stepName(last)}`;
    const bin = data.ranks_each > 1 || data.steps_each > 1 ? "longest on" : "most on";
    const [table, body] = tabulate(["mean", "chosen steps", "all steps", "difference", bin]);
    ["step", ...phases].forEach((name) => {
      const mine = average(used.map((column) => means[name][column])), whole = average(all.map((column) => means[name][column]));
      const owner = cells[name] ? largest(name, used) : "";
      fill(body.insertRow(), [format(mine), format(whole), (mine > whole ? "+" : "") + format(mine - whole), owner], name);
    });
    find("selection").replaceChildren(table);
    filters.forEach((apply) => apply(first === 0 && last === columns - 1 ? null : [first, last]));
    mapCursor = null;
    drawStack();
    drawMap();
  };
  const largest = (name, used) => {
    let best = -1, where = 0;
    for (let row = 0; row < rows; row += 1) {
      const value = average(used.map((column) => cells[name][row * columns + column]));
      if (value > best) [best, where] = [value, row];
    }
    return best > 0 ? `${rankName(where)}: ${format(best)}` : "";
  };
  [from, to, quantity].forEach((control) => control.addEventListener("input", select));
  find("all").addEventListener("click", () => { from.value = 0; to.value = columns - 1; select(); });
  let begun = null;
  const columnAt = (event) => {
    const box = stack.getBoundingClientRect();
    const at = Math.floor((event.clientX - box.left - left) / ((box.width - left - right) / columns));
    return Math.min(Math.max(at, 0), columns - 1);
  };
  stack.addEventListener("pointerdown", (event) => { begun = columnAt(event); stack.setPointerCapture(event.pointerId); });
  stack.addEventListener("pointermove", (event) => {
    if (begun === null || columnAt(event) === begun) return;
    [from.value, to.value] = [begun, columnAt(event)].sort((one, other) => one - other);
    select();
  });
  stack.addEventListener("pointerup", () => { begun = null; });
  stack.addEventListener("pointercancel", () => { begun = null; });
  data.marks.forEach(([step, text], index) => find("marks").append(make("li", `${String.fromCharCode(65 + index)}: step ${step}, ${text}`)));
  redraws.push(select);
  listen(stack, find("stack-says"), {
    hint: "",
    size: () => [1, columns],
    locate: (x) => {
      const column = Math.floor((x - left) / ((stack.clientWidth - left - right) / columns));
      return column >= 0 && column < columns ? [0, column] : null;
    },
    describe: ([, column]) => `step ${data.shown[column]}${data.measured[column] ? "" : " (not in the statistics)"}: ${format(means.step[column])}; ` +
      phases.filter((name) => means[name][column] > 0).map((name) => `${name} ${format(means[name][column])}`).join(", "),
    mark: (at) => { cursor = at && at[1]; drawStack(); },
  });
  listen(map, find("cells-says"), {
    size: () => [rows, range()[1] - range()[0] + 1],
    locate: (x, y) => {
      const at = [Math.floor(y / mapTall), Math.floor((x - left - 20) / mapWide)], [first, last] = range();
      return at[0] >= 0 && at[1] >= 0 && at[0] < rows && at[1] <= last - first ? at : null;
    },
    describe: ([row, column]) => `${rankName(row)}, ${stepName(range()[0] + column)}: ${quantity.value} ${format(cells[quantity.value][row * columns + range()[0] + column])}`,
    mark: (at) => { mapCursor = at; drawMap(); },
  });
};

drawWhere();
chooseWaits();
choosePhases();
drawWhen();
redraw();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
