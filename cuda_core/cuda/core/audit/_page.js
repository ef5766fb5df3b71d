// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const GUTTER = 92, AXIS = 24, RIGHT = 14, HEAD = 20;

  // ---- the data, as objects ------------------------------------------------------------------------------------
  const END = Math.max(data.end, 1);
  const LEAKED = new Set(["open", "gone"]);
  const lives = data.lives.map((row, index) => {
    const [serial, address, size, resource, ending, begun, ended, thread, stack, states, steps, stepsLeftOut, loans,
      failures, source, taker] = row;
    const life = {
      index, serial, address, size, resource, ending: data.texts[ending], from: begun === null ? 0 : begun,
      to: ended === null ? END : ended, before: begun === null, stays: ended === null, thread: data.texts[thread],
      stack: data.stacks[stack], states: [], steps: [], stepsLeftOut, loans, failures, source, taker, detached: false,
    };
    for (let i = 0; i < states.length; i += 2) {
      const name = data.texts[states[i + 1]];
      life.states.push([states[i], name]);
      life.detached = life.detached || name === "DETACHED";
    }
    for (let i = 0; i < steps.length; i += 3) {
      life.steps.push([steps[i], data.texts[steps[i + 1]], data.texts[steps[i + 2]]]);
    }
    life.leaked = LEAKED.has(life.ending) && !life.detached;
    life.adrift = LEAKED.has(life.ending) && life.detached;
    life.bad = life.leaked || life.adrift || life.ending === "lost";
    const own = life.stack.filter((frame) => frame[3]);
    life.own = own.length ? own : life.stack;
    life.place = life.own.length ? frameText(life.own[0]) : "not known";
    life.words = [data.resources[resource][0], "#" + serial, "0x" + address.toString(16), life.thread, life.ending,
      ...life.stack.map(frameText)].join("\n").toLowerCase();
    return life;
  });
  const bySerial = new Map(lives.map((life) => [life.serial, life]));
  // Memory that went from one owner to the next was allocated once, and is counted once. Owners come in their order.
  for (const life of lives) life.first = bySerial.has(life.source) ? bySerial.get(life.source).first || life.serial : life.serial;
  const countOf = (ones) => new Set(ones.map((life) => life.first)).size;
  const resources = data.resources.map(([name, count, size, peak, live], index) => ({
    name, count, size, peak, live, index, shown: true, colour: "--r" + (index % 8),
  }));

  const ENDINGS = {
    returned: "returned", collected: "returned by a collection; nobody has closed it", grown: "grown",
    moved: "moved to another resource", detached: "detached", adopted: "adopted", "handed over": "handed over to foreign code",
    graph: "taken over by a graph", lost: "lost with its context", gone: "dropped; nobody returns it",
    open: "open at the end: never returned", queued: "closed; the queue had not returned it at the end",
    "not known": "its end was not recorded",
  };
  const many = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
  function endingOf(life) {
    const [, state] = life.states.length ? life.states[life.states.length - 1] : [0, ""];
    return life.ending === "open" && state === "LENT" && life.loans ? `closed, held by ${many(life.loans, "loan")}` : ENDINGS[life.ending] || life.ending;
  }
  const STATES = [
    ["OWNED", "--owned", "owned by a buffer"], ["LEAKED", "--leaked", "owned, and never returned"], ["LENT", "--lent", "closed, held by loans"],
    ["DETACHED", "--detached", "detached, in an Allocation"], ["QUEUED", "--queued", "closed, waiting in the queue"],
    ["FAILED", "--failed", "a release failed"], ["REFUSED", "--failed", "refused to the queue"],
    ["GONE", "--gone", "nobody returns it"],
  ];
  const STATE_COLOUR = Object.fromEntries(STATES.map(([name, colour]) => [name, colour]));

  // ---- texts ---------------------------------------------------------------------------------------------------
  function frameText([file, line, name]) {
    return `${data.files[file]}:${line} in ${data.texts[name]}`;
  }
  function bytesText(size) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (Math.abs(size) >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
    const digits = unit === 0 || Number.isInteger(size) || size >= 100 ? 0 : size >= 10 ? 1 : 2;
    return `${size.toFixed(digits)} ${units[unit]}`;
  }
  function timeText(time, resolution = Math.abs(time) / 1000) {
    const [unit, name] = Math.abs(time) >= 1e6 ? [1e6, "s"] : Math.abs(time) >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(Math.max(resolution, 0.05) / unit))));
    return `${(time / unit).toFixed(digits)} ${name}`;
  }
  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }
  let colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (known, name) => known[name] || (known[name] = style.getPropertyValue(name).trim()) });
  }

  // ---- what is shown -------------------------------------------------------------------------------------------
  const view = { from: 0, to: END };
  const filter = { text: "", least: 0, finding: null };
  const FINDINGS = [
    ["leaked", "leaked", "bad", (life) => life.leaked, "never returned"],
    ["adrift", "detached, not adopted", "bad", (life) => life.adrift, "detached, and neither adopted nor declared as handed over"],
    ["lost", "lost", "bad", (life) => life.ending === "lost", "lost with their context"],
    ["failed", "releases failed", "warn", (life) => life.failures > 0, "an attempt to return them failed"],
    ["collected", "only collected", "warn", (life) => life.ending === "collected", "closed by nobody; a collection has returned them"],
    ["waiting", "in the queue at the end", "warn", (life) => life.ending === "queued", "closed, and not back when the recording ended"],
  ];
  let shown = [], rows = [], rowOf = new Map(), headings = [], total = 0, order = [];
  let chosen = null, pointed = null, allFrames = false;

  function applyFilter() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const finding = FINDINGS.find(([key]) => key === filter.finding);
    shown = lives.filter((life) => resources[life.resource].shown && life.size >= filter.least
      && (!finding || finding[3](life)) && words.every((word) => life.words.includes(word)));
    layOut();
    prepareMemory();
    byId("shown").textContent = shown.length === lives.length ? many(countOf(lives), "allocation")
      : `${countOf(shown).toLocaleString("en")} of ${many(countOf(lives), "allocation")}`;
    byId("none").hidden = shown.length > 0;
    byId("scroller").hidden = shown.length === 0;
    drawAll();
    fillPlaces();
  }

  // A heap of rows by the end of what is in them.
  function packed(ones) {
    const heap = [], result = [];
    const up = (i) => { while (i > 0) { const p = (i - 1) >> 1; if (heap[p].end <= heap[i].end) return; [heap[p], heap[i]] = [heap[i], heap[p]]; i = p; } };
    const down = (i) => {
      for (;;) {
        let least = i;
        for (const child of [2 * i + 1, 2 * i + 2]) if (child < heap.length && heap[child].end < heap[least].end) least = child;
        if (least === i) return;
        [heap[least], heap[i]] = [heap[i], heap[least]]; i = least;
      }
    };
    for (const life of ones) {
      if (heap.length && heap[0].end <= life.from) {
        heap[0].lives.push(life); heap[0].end = life.to; down(0);
      } else {
        const row = { end: life.to, lives: [life] };
        heap.push(row); result.push(row); up(heap.length - 1);
      }
    }
    return result;
  }
  function layOut() {
    const way = byId("rows").value, byTime = [...shown].sort((a, b) => a.from - b.from || a.serial - b.serial);
    rows = []; headings = []; rowOf = new Map();
    if (way === "packed" || way === "place") {
      const groups = new Map();
      for (const life of byTime) {
        const key = way === "packed" ? life.resource : life.place;
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(life);
      }
      const sorted = [...groups].sort(way === "packed" ? (a, b) => a[0] - b[0]
        : (a, b) => b[1].reduce((sum, life) => sum + life.size, 0) - a[1].reduce((sum, life) => sum + life.size, 0));
      for (const [key, ones] of sorted) {
        const text = way === "packed" ? resources[key].name : key;
        headings.push({ row: rows.length, text, count: countOf(ones), colour: way === "packed" ? resources[key].colour : null });
        rows.push({ heading: headings[headings.length - 1], lives: [] }, ...packed(ones));
      }
    } else {
      const ways = { begun: () => 0, size: (a, b) => b.size - a.size, life: (a, b) => (b.to - b.from) - (a.to - a.from) };
      rows = [...byTime].sort(ways[way]).map((life) => ({ lives: [life] }));
    }
    order = [];
    rows.forEach((row, index) => row.lives.forEach((life) => { rowOf.set(life, index); order.push(life); }));
    placeRows();
  }
  function placeRows() {
    const height = Number(byId("height").value);
    let top = AXIS;
    for (const row of rows) { row.top = top; row.height = row.heading ? HEAD : height; top += row.height; }
    total = top + 6;
    const room = Math.min(Math.max(total, 120), Math.max(260, Math.round(window.innerHeight * 0.5)));
    byId("scroller").style.height = room + "px";
    byId("spacer").style.height = Math.max(0, total - room) + "px";
  }

  // ---- pictures ------------------------------------------------------------------------------------------------
  const memory = byId("memory"), canvas = byId("lives"), scroller = byId("scroller");
  function prepare(node, width, height) {
    const ratio = window.devicePixelRatio || 1;
    if (node.width !== Math.round(width * ratio) || node.height !== Math.round(height * ratio)) {
      node.width = Math.round(width * ratio); node.height = Math.round(height * ratio);
      node.style.width = width + "px"; node.style.height = height + "px";
    }
    const context = node.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
    context.textBaseline = "middle";
    return context;
  }
  const pictureWidth = () => Math.max(320, memory.parentElement.clientWidth);
  const livesWidth = () => Math.max(320, scroller.clientWidth);
  // The pictures have one scale, although a scroll bar may stand beside one of them.
  const plotWidth = () => Math.min(pictureWidth(), livesWidth() || pictureWidth()) - GUTTER - RIGHT;
  const xOf = (time) => GUTTER + (time - view.from) / (view.to - view.from) * plotWidth();
  const timeOf = (x) => view.from + (x - GUTTER) / plotWidth() * (view.to - view.from);

  function niceStep(span, wanted) {
    const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough);
  }
  function ticks() {
    const step = niceStep(view.to - view.from, Math.max(2, plotWidth() / 110)), found = [];
    for (let n = Math.ceil(view.from / step); n * step <= view.to; n += 1) found.push(n * step);
    return [found, step];
  }
  function drawAxis(context, y, top, bottom) {
    const [found, step] = ticks();
    context.textAlign = "center";
    for (const time of found) {
      const x = Math.round(xOf(time)) + .5;
      context.strokeStyle = colours["--grid"]; context.beginPath(); context.moveTo(x, top); context.lineTo(x, bottom); context.stroke();
      const text = tickText(time, step), half = context.measureText(text).width / 2;
      context.fillStyle = colours["--soft"];
      context.fillText(text, Math.min(Math.max(x, GUTTER + half), GUTTER + plotWidth() - half + RIGHT - 2), y);
    }
  }
  function tickText(time, step) {
    if (time === 0) return "0";
    const [unit, name] = view.to >= 2e6 ? [1e6, "s"] : view.to >= 2e3 ? [1e3, "ms"] : [1, "µs"];
    return `${(time / unit).toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / unit) - 1e-9))))} ${name}`;
  }

  let changes = { time: [], resource: [], size: [] }, columns = [];
  function prepareMemory() {
    const all = [];
    for (const life of shown) {
      all.push([life.from, 1, life.resource, life.size]);
      if (!life.stays) all.push([life.to, 0, life.resource, -life.size]);
    }
    all.sort((a, b) => a[0] - b[0] || a[1] - b[1]);  // what ends at a moment makes room for what begins
    changes = { time: all.map((c) => c[0]), resource: all.map((c) => c[2]), size: all.map((c) => c[3]) };
  }
  function computeColumns(width) {
    // In each column the moment with the most memory: no peak hides between two pixels.
    const now = resources.map(() => 0);
    let sum = 0, next = 0;
    const count = changes.time.length, result = [];
    const take = () => { now[changes.resource[next]] += changes.size[next]; sum += changes.size[next]; next += 1; };
    while (next < count && changes.time[next] < view.from) take();
    for (let column = 0; column < width; column += 1) {
      const until = view.from + (column + 1) / width * (view.to - view.from);
      let best = sum, values = null;
      const begin = now.slice();
      while (next < count && changes.time[next] <= until) {
        take();
        if (sum > best) { best = sum; values = now.slice(); }
      }
      result.push({ sum: best, values: values || begin });
    }
    return result;
  }
  function drawMemory() {
    const width = pictureWidth(), height = 200, bottom = height - AXIS, top = 10;
    const context = prepare(memory, width, height), plot = Math.floor(plotWidth());
    columns = computeColumns(plot);
    const most = columns.reduce((max, column) => Math.max(max, column.sum), 0);
    let unit = 1;
    while (most / unit >= 1024) unit *= 1024;
    const step = 2 ** Math.ceil(Math.log2(Math.max(most / unit, 1) / 5)) * unit, limit = Math.max(step, Math.ceil(most / step) * step);
    const yOf = (value) => bottom - value / limit * (bottom - top);
    drawAxis(context, bottom + AXIS / 2 + 1, top, bottom);
    context.textAlign = "right";
    for (let value = 0; value <= limit + step / 2; value += step) {
      const y = Math.round(yOf(value)) + .5;
      context.strokeStyle = colours["--grid"]; context.beginPath(); context.moveTo(GUTTER, y); context.lineTo(GUTTER + plot, y); context.stroke();
      context.fillStyle = colours["--soft"]; context.fillText(value ? bytesText(value) : "0", GUTTER - 8, y);
    }
    const base = new Float64Array(plot);
    for (const resource of resources) {
      if (!resource.shown || !columns.some((column) => column.values[resource.index])) continue;
      context.fillStyle = colours[resource.colour];
      context.beginPath(); context.moveTo(GUTTER, yOf(base[0]));
      for (let x = 0; x < plot; x += 1) {
        const y = yOf(base[x] + columns[x].values[resource.index]);
        context.lineTo(GUTTER + x, y); context.lineTo(GUTTER + x + 1, y);
      }
      for (let x = plot - 1; x >= 0; x -= 1) {
        const y = yOf(base[x]);
        context.lineTo(GUTTER + x + 1, y); context.lineTo(GUTTER + x, y);
        base[x] += columns[x].values[resource.index];
      }
      context.fill();
    }
    drawMarks(context, top, bottom);
  }
  function drawMarks(context, top, bottom) {
    if (drag && drag.moved) {
      context.fillStyle = colours["--accent"]; context.globalAlpha = .18;
      context.fillRect(Math.min(drag.x, drag.now), top, Math.abs(drag.now - drag.x), bottom - top);
      context.globalAlpha = 1;
    }
    if (cross !== null && cross >= GUTTER && cross <= GUTTER + plotWidth()) {
      context.strokeStyle = colours["--soft"]; context.setLineDash([3, 3]);
      context.beginPath(); context.moveTo(Math.round(cross) + .5, top); context.lineTo(Math.round(cross) + .5, bottom); context.stroke();
      context.setLineDash([]);
    }
  }

  function stretch(life) {  // pixels; at least one and a half, so that nothing is too short to be seen
    const x = xOf(life.from), end = xOf(life.to);
    return [x, Math.max(end, x + 1.5)];
  }
  const roomBefore = (life, x) => rows[rowOf.get(life)].lives.every((other) => other === life || xOf(other.to) < x);
  const colourOf = (life, state) => (life.leaked && state === "OWNED" ? "--leaked" : STATE_COLOUR[state] || "--owned");
  function drawLife(context, life, top, height, following) {
    const [x, end] = stretch(life), left = GUTTER, right = GUTTER + plotWidth();
    if (end < left || x > right) return;
    const inset = height > 5 ? 1 : 0, y = top + inset, tall = height - 2 * inset;
    for (let i = 0; i < life.states.length; i += 1) {
      const [time, state] = life.states[i], next = life.states[i + 1];
      const a = Math.max(left, xOf(Math.max(time, life.from))), b = Math.min(right, next ? xOf(next[0]) : end);
      if (next && b - a < .4) continue;
      context.fillStyle = colours[colourOf(life, state)];
      // A gap behind each bar, where there is room for one, so that those of one row do not run together.
      const gap = !next && b - a > 4 && !life.stays ? 1 : 0;
      context.fillRect(a, y, Math.max(b - a - gap, Math.min(1.5, right - a)), tall);
    }
    if (life.bad && end <= right + 1) {  // a mark at the end, where it shows what was wrong
      context.fillStyle = colours["--bad"];
      const w = Math.min(4, Math.max(2, (end - x) / 3));
      context.fillRect(Math.min(end, right) - w, top, w, height);
    } else if (life.ending === "collected" && height >= 3) {
      context.fillStyle = colours["--warn"]; context.fillRect(Math.min(end, right) - 2, top, 2, height);
    }
    if (life.before && x >= left - 1 && height >= 6) {
      context.fillStyle = colours["--panel"]; context.fillRect(left + 2, y, 2, tall);
    }
    const text = `#${life.serial}  ${bytesText(life.size)}`, from = Math.max(x, left), room = Math.min(end, right) - from;
    if (height < 13) return;
    const needs = context.measureText(text).width + 14, middle = top + height / 2 + .5;
    context.textAlign = "left";
    if (needs < room) {
      context.fillStyle = document.documentElement.dataset.theme === "dark" ? "#0d1117" : "#ffffff";
      context.fillText(text, from + 6, middle);
    } else if (end >= left && end + needs < Math.min(right, following ? xOf(following.from) : right)) {
      context.fillStyle = colours["--soft"];
      context.fillText(text, end + 6, middle);
    } else if (!following && x - needs > left && end > right - needs && roomBefore(life, x - needs)) {
      context.textAlign = "right"; context.fillStyle = colours["--soft"];
      context.fillText(text, x - 6, middle);
    }
  }
  function drawLives() {
    const width = livesWidth(), height = parseInt(scroller.style.height, 10), scrolled = scroller.scrollTop;
    const context = prepare(canvas, width, height), right = GUTTER + plotWidth();
    drawAxis(context, AXIS / 2, AXIS - 4, height);
    let first = 0, last = rows.length;
    while (first < last) { const middle = (first + last) >> 1; if (rows[middle].top + rows[middle].height < scrolled + AXIS) first = middle + 1; else last = middle; }
    const single = !headings.length;
    context.save();
    context.beginPath(); context.rect(0, AXIS, width, height - AXIS); context.clip();
    for (let index = first; index < rows.length && rows[index].top - scrolled < height; index += 1) {
      const row = rows[index], top = row.top - scrolled;
      if (row.heading) {
        context.fillStyle = colours["--panel"]; context.fillRect(0, top, context.measureText(`${row.heading.text}   ${many(row.heading.count, "allocation")}`).width + 34, HEAD);
        if (row.heading.colour) { context.fillStyle = colours[row.heading.colour]; context.fillRect(4, top + 5, 10, 10); }
        context.textAlign = "left"; context.fillStyle = colours["--ink"];
        const text = row.heading.text, half = many(row.heading.count, "allocation");
        context.fillText(text, row.heading.colour ? 20 : 4, top + HEAD / 2);
        const at = (row.heading.colour ? 20 : 4) + context.measureText(text + "  ").width;
        context.fillStyle = colours["--soft"]; context.fillText(half, at, top + HEAD / 2);
        continue;
      }
      if (single && row.height >= 11) {
        context.textAlign = "right"; context.fillStyle = colours["--soft"]; context.fillText("#" + row.lives[0].serial, GUTTER - 8, top + row.height / 2);
      }
      let a = 0, b = row.lives.length;  // the rows are in order, so only what is in view need be looked at
      while (a < b) { const middle = (a + b) >> 1; if (row.lives[middle].to < view.from) a = middle + 1; else b = middle; }
      for (let i = a; i < row.lives.length && row.lives[i].from <= view.to; i += 1) drawLife(context, row.lives[i], top, row.height, row.lives[i + 1]);
    }
    for (const [life, wide] of [[pointed, 1], [chosen, 2]]) {
      if (!life || !rowOf.has(life)) continue;
      const row = rows[rowOf.get(life)], [x, end] = stretch(life), from = Math.max(x, GUTTER - 1), to = Math.min(end, right + 1);
      if (to < from) continue;
      context.strokeStyle = colours["--ink"]; context.lineWidth = wide;
      context.strokeRect(from - 1, row.top - scrolled - .5, to - from + 2, row.height + 1);
      context.lineWidth = 1;
    }
    if (chosen) for (const [one, other] of [[bySerial.get(chosen.source), chosen], [chosen, bySerial.get(chosen.taker)]]) {
      if (!one || !other || !rowOf.has(one) || !rowOf.has(other)) continue;
      const a = rows[rowOf.get(one)], b = rows[rowOf.get(other)], x = xOf(other.from);
      if (x < GUTTER || x > right || a === b) continue;
      context.strokeStyle = colours["--ink"]; context.beginPath();
      context.moveTo(x, a.top + a.height / 2 - scrolled); context.lineTo(x, b.top + b.height / 2 - scrolled); context.stroke();
    }
    drawMarks(context, AXIS - 4, height);
    context.restore();
  }
  function drawAll() { if (shown.length) drawLives(); drawMemory(); }
  let asked = false;
  function draw() { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; drawAll(); }); } }

  // ---- moving about --------------------------------------------------------------------------------------------
  function show(from, to) {
    const least = Math.max(END / 1e7, 0.05);
    let span = Math.min(END, Math.max(least, to - from));
    let begin = (from + to - span) / 2;
    begin = Math.min(Math.max(0, begin), END - span);
    view.from = begin; view.to = begin + span;
    draw();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }
  function move(part) {
    const by = (view.to - view.from) * part;
    const held = Math.min(Math.max(by, -view.from), END - view.to);
    show(view.from + held, view.to + held);
  }
  const whole = () => show(0, END);
  let drag = null, cross = null;
  function lifeAt(x, y) {
    const at = y + scroller.scrollTop;
    let first = 0, last = rows.length;
    while (first < last) { const middle = (first + last) >> 1; if (rows[middle].top + rows[middle].height <= at) first = middle + 1; else last = middle; }
    const row = rows[first];
    if (!row || y < AXIS || at < row.top) return null;
    let best = null, distance = 4;
    for (const life of row.lives) {
      const [a, b] = stretch(life), away = x < a ? a - x : x > b ? x - b : 0;
      if (away < distance) { best = life; distance = away; if (!away) break; }
    }
    return best;
  }
  for (const node of [memory, scroller]) {
    const place = (event) => { const box = node.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    node.addEventListener("pointerdown", (event) => {
      const [x] = place(event);
      if (event.button || x > GUTTER + plotWidth() + RIGHT) return;  // beyond is the scroll bar
      drag = { node, x, now: x, moved: false };
    });
    node.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      cross = x;
      if (drag && drag.node === node) {
        drag.now = Math.min(Math.max(x, GUTTER), GUTTER + plotWidth());
        drag.moved = drag.moved || Math.abs(x - drag.x) > 4;
      }
      pointed = node === scroller ? lifeAt(x, y) : null;
      tell(event, node === memory ? memoryTip(x) : pointed && lifeTip(pointed));
      draw();
    });
    node.addEventListener("pointerleave", () => { cross = null; pointed = null; tell(null, null); draw(); });
    node.addEventListener("dblclick", whole);
    node.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, timeOf(place(event)[0])); }
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move((event.deltaX || event.deltaY) / plotWidth()); }
    }, { passive: false });
    node.addEventListener("click", (event) => { if (node === scroller && !dragged) choose(lifeAt(...place(event))); });
  }
  let dragged = false;
  window.addEventListener("pointerup", () => {
    dragged = Boolean(drag && drag.moved);
    if (dragged) { const [a, b] = [timeOf(Math.max(GUTTER, Math.min(drag.x, drag.now))), timeOf(Math.max(drag.x, drag.now))]; drag = null; show(a, b); }
    drag = null; draw();
  });
  scroller.addEventListener("scroll", draw);
  window.addEventListener("resize", () => { placeRows(); draw(); });

  // ---- what is told --------------------------------------------------------------------------------------------
  const tip = byId("tip");
  function tell(event, content) {
    tip.hidden = !content || Boolean(drag && drag.moved);
    if (tip.hidden) return;
    tip.replaceChildren(...content);
    const box = tip.getBoundingClientRect(), gap = 14;
    let x = event.clientX + gap, y = event.clientY + gap;
    if (x + box.width > window.innerWidth - 4) x = Math.max(4, event.clientX - box.width - gap);
    if (y + box.height > window.innerHeight - 4) y = Math.max(4, event.clientY - box.height - gap);
    tip.style.left = x + "px"; tip.style.top = y + "px";
  }
  function memoryTip(x) {
    const column = columns[Math.floor(x - GUTTER)];
    if (!column) return null;
    const lines = resources.filter((one) => one.shown && column.values[one.index]).map((one) =>
      element("div", { class: "line" }, element("span", {}, swatch(one.colour), " " + one.name), element("b", {}, bytesText(column.values[one.index]))));
    return [element("div", { class: "line" }, element("span", {}, timeText(timeOf(x), (view.to - view.from) / plotWidth())), element("b", {}, bytesText(column.sum))), ...lines];
  }
  function lifeTip(life) {
    const found = [
      element("div", { class: "line" }, element("b", {}, `#${life.serial}`), element("b", {}, bytesText(life.size))),
      element("div", {}, swatch(resources[life.resource].colour), " " + resources[life.resource].name),
      element("div", { class: "soft" }, life.before ? "from before the recording" : `from ${timeText(life.from)}`,
        life.stays ? " to the end" : `, for ${timeText(life.to - life.from)}`),
      element("div", { class: life.bad ? "bad-text" : life.ending === "collected" ? "warn-text" : "" }, endingOf(life)),
    ];
    if (life.own.length) found.push(element("div", { class: "code" }, life.place));
    return found;
  }
  const swatch = (colour) => element("span", { class: "swatch", style: `background:var(${colour})` });

  function choose(life, scroll = false) {
    chosen = life;
    history.replaceState(null, "", life ? "#" + life.serial : location.pathname + location.search);
    const panel = byId("detail");
    panel.hidden = !life;
    if (life) { panel.replaceChildren(...detail(life)); if (scroll) reveal(life); }
    fillPlaces();
    draw();
  }
  function reveal(life) {
    const row = rows[rowOf.get(life)];
    if (!row) return;
    const height = parseInt(scroller.style.height, 10);
    if (row.top - AXIS < scroller.scrollTop) scroller.scrollTop = row.top - AXIS - 4;
    else if (row.top + row.height > scroller.scrollTop + height) scroller.scrollTop = row.top + row.height - height + 4;
    if (life.to < view.from || life.from > view.to) { const half = (view.to - view.from) / 2; show(life.from - half, life.from + half); }
  }
  function detail(life) {
    const other = (serial) => bySerial.has(serial)
      ? element("button", { type: "button", onclick: () => choose(bySerial.get(serial), true) }, "#" + serial) : document.createTextNode("#" + serial);
    const fact = (name, ...value) => [element("dt", {}, name), element("dd", {}, ...value)];
    const list = element("dl", { class: "facts-list" },
      ...fact("size", `${bytesText(life.size)} (${life.size.toLocaleString("en")} bytes)`),
      ...fact("address", "0x" + life.address.toString(16)),
      ...fact("resource", swatch(resources[life.resource].colour), " " + resources[life.resource].name),
      ...fact("allocated", life.before ? "before the recording" : `at ${timeText(life.from)}` + (life.thread ? ` by ${life.thread}` : "")),
      ...fact("end", element("span", { class: life.bad ? "bad-text" : life.ending === "collected" ? "warn-text" : "" }, endingOf(life)),
        life.stays ? "" : ` at ${timeText(life.to)}, after ${timeText(life.to - life.from)}`));
    if (life.loans) list.append(...fact("loans", `${life.loans} open at the end`));
    if (life.failures) list.append(...fact("failed", `${many(life.failures, "attempt")} to return it`));
    if (life.source) list.append(...fact("comes from", other(life.source)));
    if (life.taker) list.append(...fact("goes on as", other(life.taker)));
    const frames = allFrames ? life.stack : life.own;
    const steps = element("div", { class: "steps" }, element("table", {}, element("thead", {}, element("tr", {},
      element("th", { class: "number" }, "time"), element("th", {}, "what has happened"), element("th", {}, "thread"))),
    element("tbody", {}, ...life.steps.map(([time, thread, text]) => element("tr", {},
      element("td", { class: "number" }, timeText(time)), element("td", {}, text), element("td", {}, thread))))));
    const left = life.stepsLeftOut ? [element("p", { class: "soft" }, `${many(life.stepsLeftOut, "more change")} of loans only counted`)] : [];
    return [
      element("div", { class: "heading" }, element("h2", {}, `Allocation #${life.serial}`),
        element("button", { type: "button", onclick: () => choose(null), "aria-label": "Close" }, "Close")),
      element("div", { class: "columns" },
        element("div", {}, list, element("h3", {}, "Where it was allocated"),
          frames.length ? element("ol", { class: "stack" }, ...frames.map((frame) => element("li", { class: allFrames && frame[3] ? "own" : "" }, frameText(frame))))
            : element("p", { class: "soft" }, "not known")),
        element("div", {}, element("h3", {}, "What has happened to it"), steps, ...left)),
    ];
  }

  // ---- by place ------------------------------------------------------------------------------------------------
  const COLUMNS = [
    ["place", "place", (p) => p.name, false], ["resource", "resource", (p) => resources[p.resource].name, false],
    ["count", "allocations", (p) => p.count.toLocaleString("en"), true], ["size", "bytes", (p) => bytesText(p.size), true],
    ["left", "not back", (p) => (p.left ? bytesText(p.left) : "–"), true], ["collected", "only collected", (p) => p.collected || "–", true],
  ];
  let sortBy = "left", descending = true, placesShown = 15;
  function fillPlaces() {
    const places = new Map();
    for (const life of shown) {
      if (life.source) continue;  // it was allocated where that was
      const key = life.place + "\n" + life.resource;
      if (!places.has(key)) places.set(key, { name: life.place, stack: life, resource: life.resource, count: 0, size: 0, left: 0, collected: 0, lives: [] });
      const place = places.get(key);
      place.count += 1; place.size += life.size; place.lives.push(life);
      for (let one = life, seen = 0; one && seen < 1000; one = bySerial.get(one.taker), seen += 1) {
        if (one.bad || one.ending === "queued") place.left += one.size;
        if (one.ending === "collected") place.collected += 1;
      }
    }
    const found = [...places.values()], key = (p) => (sortBy === "place" ? p.name : sortBy === "resource" ? resources[p.resource].name : p[sortBy]);
    found.sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : b.size - a.size) * (x === y ? 1 : descending ? -1 : 1); });
    byId("places").tHead.replaceChildren(element("tr", {}, ...COLUMNS.map(([name, title, , number]) =>
      element("th", { class: number ? "number" : "", "aria-sort": sortBy === name ? (descending ? "descending" : "ascending") : null },
        element("button", { type: "button", onclick: () => { descending = sortBy === name ? !descending : number; sortBy = name; fillPlaces(); } },
          title + (sortBy === name ? (descending ? " ▾" : " ▴") : ""))))));
    byId("places").tBodies[0].replaceChildren(...found.slice(0, placesShown).map((place) => {
      const frames = allFrames ? place.stack.stack : place.stack.own;
      const cell = element("td", { class: "code" }, ...(frames.length ? frames.map((frame, n) => element("div", { class: n ? "soft" : "" }, frameText(frame))) : ["not known"]));
      const row = element("tr", { class: "link" + (chosen && place.lives.includes(chosen) ? " chosen" : ""), tabindex: "0", title: "choose the largest allocation of this place",
        onclick: () => pick(), onkeydown: (event) => { if (event.key === "Enter") pick(); } },
      cell, ...COLUMNS.slice(1).map(([name, , text, number]) => element("td", { class: number ? "number" : "" },
        element("span", { class: name === "left" && place.left ? "bad-text" : name === "collected" && place.collected ? "warn-text" : "" }, String(text(place))))));
      const pick = () => { choose(place.lives.reduce((a, b) => (b.bad > a.bad || (b.bad === a.bad && b.size > a.size) ? b : a)), true); scroller.focus(); };
      return row;
    }));
    const more = byId("more-places");
    more.hidden = found.length <= placesShown;
    more.textContent = `Show ${(found.length - placesShown).toLocaleString("en")} more`;
  }
  byId("more-places").addEventListener("click", () => { placesShown = Infinity; fillPlaces(); });

  // ---- controls ------------------------------------------------------------------------------------------------
  function tiles() {
    const sum = (ones) => ones.reduce((total_, life) => total_ + life.size, 0);
    const parts = [
      element("div", { class: "tile" }, element("b", {}, data.count.toLocaleString("en")), element("span", {}, `${data.count === 1 ? "allocation" : "allocations"}, ${bytesText(data.size)} in all`)),
      element("div", { class: "tile" }, element("b", {}, bytesText(data.peak)), element("span", {}, "at most at once" + (data.peakTime === null ? "" : `, at ${timeText(data.peakTime)}`))),
    ];
    for (const [key, title, kind, fits, meaning] of FINDINGS) {
      const ones = lives.filter(fits);
      if (!ones.length && key !== "leaked") continue;
      parts.push(element("button", {
        type: "button", class: "tile " + (ones.length ? kind : "good"), "aria-pressed": String(filter.finding === key), disabled: !ones.length, title: `Show only these: ${meaning}`,
        onclick: () => { filter.finding = filter.finding === key ? null : key; tiles(); applyFilter(); },
      }, element("b", {}, ones.length.toLocaleString("en")), element("span", {}, title + (ones.length ? `, ${bytesText(sum(ones))}` : ""))));
    }
    byId("tiles").replaceChildren(...parts);
  }
  function legends() {
    byId("resources").replaceChildren(...resources.map((one) => element("button", {
      type: "button", "aria-pressed": String(one.shown), title: `${many(one.count, "allocation")}, at most ${bytesText(one.peak)} at once; click to hide or show`,
      onclick: () => { one.shown = !one.shown; legends(); applyFilter(); },
    }, swatch(one.colour), one.name)));
    const present = new Set(lives.flatMap((life) => life.states.map(([, state]) => (life.leaked && state === "OWNED" ? "LEAKED" : state))));
    const keys = STATES.filter(([name]) => present.has(name)).map(([, colour, text]) => element("span", { class: "key" }, swatch(colour), text));
    if (lives.some((life) => life.bad)) keys.push(element("span", { class: "key" }, element("span", { class: "swatch", style: "width:4px;background:var(--bad)" }), "ends as a leak, or lost"));
    if (lives.some((life) => life.ending === "collected")) keys.push(element("span", { class: "key" }, element("span", { class: "swatch", style: "width:3px;background:var(--warn)" }), "ends by a collection"));
    byId("states").replaceChildren(...keys);
  }
  function notices() {
    const found = [];
    if (data.leftOut) found.push(`${many(data.leftOut, "allocation")} that had ended by ${timeText(data.leftOutUntil)} were left out to bound the memory of the recording. The numbers at the top count them; the pictures do not.`);
    if (data.lostEvents || data.lostLoans) found.push(`Too much happened at once: ${many(data.lostEvents, "change")} of ownership and ${many(data.lostLoans, "change")} of loans were not recorded.`);
    byId("notices").replaceChildren(...found.map((text) => element("p", { class: "notice" }, text)));
  }
  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    readColours(); draw();
  }
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  function help() { const panel = byId("help"); panel.hidden = !panel.hidden; byId("help-button").setAttribute("aria-expanded", String(!panel.hidden)); }
  byId("help-button").addEventListener("click", help);
  let typing = null;
  byId("search").addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => { filter.text = event.target.value; applyFilter(); }, 120); });
  byId("rows").addEventListener("change", () => { scroller.scrollTop = 0; layOut(); draw(); });
  byId("height").addEventListener("input", () => { placeRows(); draw(); });
  byId("whole").addEventListener("click", whole);
  byId("least").append(...[[0, "anything"], [4 << 10, "4 KiB"], [64 << 10, "64 KiB"], [1 << 20, "1 MiB"], [16 << 20, "16 MiB"], [256 << 20, "256 MiB"], [1 << 30, "1 GiB"]]
    .map(([value, text]) => element("option", { value }, text)));
  byId("least").addEventListener("change", (event) => { filter.least = Number(event.target.value); applyFilter(); });
  byId("all-frames").addEventListener("change", (event) => { allFrames = event.target.checked; fillPlaces(); if (chosen) choose(chosen); });
  function step(by) {
    if (!order.length) return;
    const at = chosen && rowOf.has(chosen) ? order.indexOf(chosen) + by : by > 0 ? 0 : order.length - 1;
    choose(order[Math.min(Math.max(at, 0), order.length - 1)], true);
  }
  document.addEventListener("keydown", (event) => {
    const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") {
      if (inField && event.target.id === "search") { event.target.value = ""; filter.text = ""; applyFilter(); event.target.blur(); } else choose(null);
      return;
    }
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => move(-.2), ArrowRight: () => move(.2), ArrowUp: () => step(-1), ArrowDown: () => step(1),
      "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), 0: whole, "?": help, "/": () => byId("search").focus(),
      Enter: () => { if (chosen && !/^(BUTTON|TR)$/.test(event.target.tagName)) { const pad = Math.max((chosen.to - chosen.from) * .15, END / 1e6); show(chosen.from - pad, chosen.to + pad); } else return true; return false; },
    };
    if (keys[event.key] && keys[event.key]() !== true) event.preventDefault();
  });

  // page.html#12 chooses allocation #12.
  function followHash() {
    const life = bySerial.get(Number(location.hash.slice(1)));
    if (life && life !== chosen) choose(life, true);
  }
  window.addEventListener("hashchange", followHash);

  byId("program").textContent = data.program;
  byId("facts").textContent = `process ${data.pid} · Python ${data.python} · cuda-core ${data.version} · began ${data.started} · took ${timeText(data.end)}`;
  setTheme(dark.matches ? "dark" : "light");
  notices(); legends(); tiles();
  // So that all rows can be seen at once where that is possible.
  applyFilter();
  const plain = rows.filter((row) => !row.heading).length;
  byId("height").value = String(Math.max(3, Math.min(18, Math.floor(420 / Math.max(plain, 1)))));
  placeRows();
  drawAll();
  followHash();
})();
