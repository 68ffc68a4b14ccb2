"use strict";
/* The viewer of a report. All that it knows stands in the element "data", as report/page.py writes it. What comes from a trace is
   only ever drawn on a canvas or set as the text of a node. ASCII alone: the page has no other bytes. */
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const still = matchMedia("(prefers-reduced-motion: reduce)"), touch = matchMedia("(hover: none)"), narrow = matchMedia("(max-width: 640px)");
  const ROW = 20, AXIS = 24, SMALLEST = 0.6;

  const make = (tag, told, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(told || {})) {
      if (name === "click") element.addEventListener("click", value);
      else if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  // --- numbers as texts
  const scaled = (value, units, unit) => {
    let at = units.findIndex(([size]) => Math.abs(value) >= size);
    if (at < 0) at = units.length - 1;
    const amount = value / units[at][0];
    const digits = Math.abs(amount) >= 100 ? 0 : Math.abs(amount) >= 10 ? 1 : 2;
    return (units[at][0] === 1 ? String(Math.round(value)) : amount.toFixed(digits)) + "\u00a0" + units[at][1];
  };
  const time = (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]]);
  const bytes = (count) => scaled(count, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
  const number = (value) => value.toLocaleString("en-US");
  const plural = (value, word) => `${number(value)} ${word}${value === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
  const percent = (part, whole) => {
    const share = whole > 0 ? (100 * part) / whole : 0;
    return share > 0 && share < 0.05 ? "<0.1\u00a0%" : share.toFixed(share >= 99.95 ? 0 : 1) + "\u00a0%";
  };
  const nameOf = (index) => (index < 0 ? "" : data.names[index]);

  // --- boxes of the flame graph: parents stand before their children
  const flame = data.flame, timeline = data.timeline, frames = flame.name.length;
  const below = Array.from({length: frames + 1}, () => []);
  flame.above.forEach((above, frame) => below[above < 0 ? frames : above].push(frame));
  const depthOf = new Int32Array(frames);
  flame.above.forEach((above, frame) => { depthOf[frame] = above < 0 ? 0 : depthOf[above] + 1; });
  const summedUp = (own) => {
    const sums = Float64Array.from(own);
    for (let frame = frames - 1; frame >= 0; frame--) if (flame.above[frame] >= 0) sums[flame.above[frame]] += sums[frame];
    return sums;
  };
  const WIDTHS = {
    time: {title: "time", of: Float64Array.from(flame.total), text: time},
    calls: {title: "number of calls", of: summedUp(flame.count), text: number},
    memory: {title: "memory allocated", of: summedUp(flame.allocated), text: bytes},
  };
  let width = WIDTHS.time;

  /* Where each frame begins and ends. Frames in one frame may have taken longer than it, side by side on several threads: then
     they share its width. */
  const laidOut = (weights) => {
    const start = new Float64Array(frames), end = new Float64Array(frames);
    const put = (children, from, room) => {
      const sum = children.reduce((total, frame) => total + weights[frame], 0);
      const scale = sum > room ? room / sum : 1;
      children.sort((one, other) => weights[other] - weights[one]);
      for (const frame of children) {
        start[frame] = from;
        end[frame] = from += weights[frame] * scale;
      }
    };
    const whole = below[frames].reduce((total, frame) => total + weights[frame], 0);
    put(below[frames], 0, whole);
    for (let frame = 0; frame < frames; frame++) put(below[frame], start[frame], end[frame] - start[frame]);
    return {start, end, whole: whole || 1};
  };

  const frameName = (frame) => (flame.name[frame] < 0 ? "others, each too small to show" : nameOf(flame.name[frame]));
  const pathOf = (frame) => {
    const path = [];
    for (; frame >= 0; frame = flame.above[frame]) path.unshift(frame);
    return path;
  };

  // --- boxes of the time line
  const boxes = timeline.name.length, boxStart = new Float64Array(boxes), boxEnd = new Float64Array(boxes);
  let sum = 0;
  for (let box = 0; box < boxes; box++) {
    boxStart[box] = sum += timeline.start[box];
    boxEnd[box] = sum + timeline.length[box];
  }
  const deepest = timeline.lanes.map(() => 0);
  for (let box = 0; box < boxes; box++) deepest[timeline.lane[box]] = Math.max(deepest[timeline.lane[box]], timeline.depth[box] + 1);
  const laneRow = [];
  let laneRows = 0;
  for (const depth of deepest) {
    laneRow.push(laneRows);
    laneRows += depth + 1;
  }
  const boxName = (box) => (timeline.name[box] < 0 ? `${plural(timeline.count[box], "range")}` : nameOf(timeline.name[box]));
  const laneName = (lane) =>
    (timeline.processes.length > 1 ? timeline.processes[timeline.lanes[lane].process] + ": " : "") + timeline.lanes[lane].thread;

  // --- colours
  let colours = {};
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    colours = {kinds: data.kinds.map((_, kind) => of(`--k${kind}`))};
    for (const name of ["paper", "raised", "line", "ink", "quiet", "mark", "on-kind", "packed", "on-packed", "link"]) colours[name] = of(`--${name}`);
  };
  const shade = data.names.map((name) => {
    let hash = 7;
    for (let at = 0; at < name.length; at++) hash = (hash * 31 + name.charCodeAt(at)) % 9973;
    return 0.74 + 0.26 * ((hash % 7) / 6);
  });

  /* A picture: boxes in rows, of which a part is seen. `source` says where the boxes are and what they are called; `from`, `to` is the
     part. Both pictures are drawn, searched, zoomed and walked through by this. */
  const picture = (host, source) => {
    const canvas = host.querySelector("canvas"), space = host.querySelector(".space"), context = canvas.getContext("2d");
    const self = {host, source, from: 0, to: 1, history: [], chosen: -1, under: -1};
    let rows = [], pixels = 0, height = 0, waiting = false, moving = 0;

    self.arrange = () => {
      rows = Array.from({length: source.rows()}, () => []);
      for (let box = 0; box < source.count; box++) if (source.end[box] > source.start[box] || source.keepEmpty) rows[source.row(box)].push(box);
      for (const row of rows) row.sort((one, other) => source.start[one] - source.start[other]);
      self.from = 0;
      self.to = source.whole;
      self.history = [];
      self.resize();
    };

    self.resize = () => {
      pixels = host.clientWidth;
      const content = source.top + rows.length * ROW + 6;
      height = Math.min(content, Math.max(120, parseFloat(getComputedStyle(host).maxHeight) || content));
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.max(1, Math.round(pixels * ratio));
      canvas.height = Math.round(height * ratio);
      canvas.style.width = pixels + "px";
      canvas.style.height = height + "px";
      space.style.height = Math.max(0, content - height) + "px";
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      self.draw();
    };

    self.draw = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        if (pixels > 0) drawNow();
      });
    };

    const x = (value) => ((value - self.from) / (self.to - self.from)) * pixels;
    const firstEndingAfter = (row, value) => {
      let low = 0, high = row.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (source.end[row[middle]] > value) high = middle;
        else low = middle + 1;
      }
      return low;
    };

    const drawNow = () => {
      context.fillStyle = colours.paper;
      context.fillRect(0, 0, pixels, height);
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
      context.textBaseline = "middle";
      const scrolled = host.scrollTop;
      const first = Math.max(0, Math.floor((scrolled - source.top) / ROW));
      const last = Math.min(rows.length, Math.ceil((scrolled + height - source.top) / ROW) + 1);
      if (source.under) source.under(context, self, x, pixels, scrolled, height);
      for (let at = first; at < last; at++) {
        const row = rows[at], y = source.top + at * ROW - scrolled;
        let covered = -1;
        for (let place = firstEndingAfter(row, self.from); place < row.length; place++) {
          const box = row[place];
          if (source.start[box] >= self.to && source.start[box] > self.from) break;
          const left = Math.max(x(source.start[box]), -2), right = Math.min(x(source.end[box]), pixels + 2);
          if (right - left < SMALLEST && right <= covered && box !== self.chosen) continue;
          drawBox(box, left, Math.max(right - left, 1), y);
          covered = Math.floor(right) + 1;
        }
      }
      if (source.over) source.over(context, self, x, pixels, scrolled, height);
    };

    const drawBox = (box, left, wide, y) => {
      const kind = source.kind(box), packed = kind < 0, found = search.text !== "" && source.matches(box);
      context.globalAlpha = search.text === "" ? (packed ? 1 : source.shade(box)) : found ? 1 : 0.22;
      const painted = wide > 3 ? wide - 1 : wide;
      if (context.globalAlpha < 1) {  // nothing shines through
        const alpha = context.globalAlpha;
        context.globalAlpha = 1;
        context.fillStyle = colours.paper;
        context.fillRect(left, y + 1, painted, ROW - 2);
        context.globalAlpha = alpha;
      }
      context.fillStyle = packed ? colours.packed : colours.kinds[kind];
      context.fillRect(left, y + 1, painted, ROW - 2);
      context.globalAlpha = search.text === "" || found ? 1 : 0.5;
      if (wide > 24) drawText(source.name(box), Math.max(left, 0) + 5, wide + Math.min(left, 0) - 9, y, packed ? colours["on-packed"] : colours["on-kind"]);
      context.globalAlpha = 1;
      if (box === self.chosen || box === self.under || (found && wide > 2)) {
        context.strokeStyle = box === self.chosen ? colours.link : colours.mark;
        context.lineWidth = box === self.chosen ? 2.5 : box === self.under ? 1.5 : 1;
        context.strokeRect(left + 0.5, y + 1.5, Math.max(1, wide - 2), ROW - 3);
      }
    };

    const drawText = (text, left, room, y, colour) => {
      if (room < 14) return;
      let shown = text, wide = context.measureText(text).width;
      if (wide > room) {  // what the colour says already is left out first
        shown = text = text.replace(/^(autograd::engine::evaluate_function|nn\.Module|Optimizer\.step)[:#] ?/, "");
        wide = context.measureText(text).width;
      }
      if (wide > room) {
        shown = text.slice(0, Math.max(1, Math.floor((text.length * room) / wide) - 1)) + "\u2026";
        while (shown.length > 2 && (wide = context.measureText(shown).width) > room) shown = shown.slice(0, -2) + "\u2026";
        if (shown.length < 4) return;
      }
      context.fillStyle = colour;
      context.fillText(shown, left, y + ROW / 2 + 0.5);
    };

    /* Shows the part from `from` to `to`, of which a way leads back. */
    self.go = (from, to, remember = true) => {
      const least = source.whole / 1e9 || 1;
      if (to - from < least) to = from + least;
      from = Math.max(0, Math.min(from, source.whole - (to - from)));
      to = Math.min(source.whole, Math.max(to, from + least));
      if (remember && (from !== self.from || to !== self.to)) self.history.push([self.from, self.to]);
      const [before, beforeTo, began] = [self.from, self.to, performance.now()];
      cancelAnimationFrame(moving);
      const finish = () => {
        self.from = from;
        self.to = to;
        self.draw();
        tools();
      };
      if (still.matches || !remember || document.hidden) return finish();
      const move = (now) => {
        const part = Math.min(1, (now - began) / 160), eased = 1 - (1 - part) ** 3;
        if (part >= 1) return finish();
        self.from = before + (from - before) * eased;
        self.to = beforeTo + (to - beforeTo) * eased;
        self.draw();
        moving = requestAnimationFrame(move);
      };
      moving = requestAnimationFrame(move);
      tools();
    };
    self.back = () => {
      const before = self.history.pop();
      if (before) self.go(before[0], before[1], false);
      else self.go(0, source.whole, false);
    };
    self.whole = () => self.go(0, source.whole);
    self.isWhole = () => self.from <= 0 && self.to >= source.whole;
    self.zoom = (factor, at = 0.5) => {
      const size = (self.to - self.from) * factor, around = self.from + (self.to - self.from) * at;
      self.go(around - size * at, around - size * at + size, false);
    };
    self.pan = (part) => {
      const size = (self.to - self.from) * part;
      self.go(self.from + size, self.to + size, false);
    };
    self.zoomTo = (box) => {
      const margin = (source.end[box] - source.start[box]) * source.margin;
      self.choose(box);
      self.go(source.start[box] - margin, source.end[box] + margin);
    };
    self.choose = (box) => {
      self.chosen = box;
      self.under = -1;
      if (box >= 0) reveal(box);
      showDetail(self, box);
      self.draw();
    };
    const reveal = (box) => {
      const top = source.top + source.row(box) * ROW;
      if (top - source.top < host.scrollTop) host.scrollTop = top - source.top;
      else if (top + ROW > host.scrollTop + height) host.scrollTop = top + ROW - height + 8;
      if (source.end[box] <= self.from || source.start[box] >= self.to) {
        const half = (self.to - self.from) / 2, middle = (source.start[box] + source.end[box]) / 2;
        self.go(middle - half, middle + half, false);
      }
    };
    self.hit = (event) => {
      const place = canvas.getBoundingClientRect(), y = event.clientY - place.top;
      const value = self.from + ((event.clientX - place.left) / pixels) * (self.to - self.from);
      const row = rows[Math.floor((y + host.scrollTop - source.top) / ROW)];
      if (!row || y < source.top - (source.top === AXIS ? 0 : 1)) return -1;
      const near = ((self.to - self.from) / pixels) * 2;
      const box = row[firstEndingAfter(row, value - near)];
      return box !== undefined && source.start[box] <= value + near ? box : -1;
    };

    /* The box above, below, before or after another one, as the eye sees them. */
    self.neighbour = (box, way) => {
      if (box < 0) {
        for (const row of rows) if (row.length) return row[Math.min(row.length - 1, firstEndingAfter(row, self.from))];
        return -1;
      }
      const at = source.row(box), row = rows[at], place = row.indexOf(box);
      if (way === "left" || way === "right") return row[place + (way === "right" ? 1 : -1)] ?? box;
      const step = way === "down" ? 1 : -1;
      for (let other = at + step; other >= 0 && other < rows.length; other += step) {
        const from = Math.max(source.start[box], self.from), to = Math.min(source.end[box], self.to);
        let widest = -1, most = -1;
        for (let index = firstEndingAfter(rows[other], from); index < rows[other].length; index++) {
          const found = rows[other][index];
          if (source.start[found] > to) break;
          const shared = Math.min(source.end[found], to) - Math.max(source.start[found], from);
          if (shared > most) [widest, most] = [found, shared];
        }
        if (widest >= 0 && (step > 0 ? most >= 0 : true)) return widest;
        if (source.within) break;
      }
      return box;
    };

    host.addEventListener("scroll", self.draw, {passive: true});
    new ResizeObserver(() => { if (host.clientWidth && host.clientWidth !== pixels) self.resize(); }).observe(host);
    listenToPointers(self, canvas, () => pixels);
    listenToKeys(self);
    return self;
  };

  const listenToPointers = (self, canvas, pixels) => {
    const down = new Map();
    let moved = false, gap = 0;
    const distance = () => {
      const [one, other] = [...down.values()];
      return Math.max(20, Math.abs(one - other));
    };
    canvas.addEventListener("pointerdown", (event) => {
      down.set(event.pointerId, event.clientX);
      if (down.size === 1) moved = false;
      else if (down.size === 2) gap = distance();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!down.has(event.pointerId)) {
        if (event.pointerType === "mouse") hover(self.hit(event));
        return;
      }
      const before = down.get(event.pointerId), way = event.clientX - before;
      if (down.size === 1 && !moved && Math.abs(way) < 5) return;
      if (!moved) canvas.setPointerCapture(event.pointerId);
      moved = true;
      down.set(event.pointerId, event.clientX);
      if (down.size === 2) {
        const now = distance(), middle = [...down.values()].reduce((one, other) => one + other) / 2 - canvas.getBoundingClientRect().left;
        self.zoom(gap / now, middle / pixels());
        gap = now;
      } else self.pan(-way / pixels());
    });
    const up = (event) => {
      const known = down.delete(event.pointerId);
      if (event.type !== "pointerup" || !known || moved || down.size) return;
      const box = self.hit(event);
      if (box < 0) return self.choose(-1);
      if (self.source.clickZooms && event.pointerType === "mouse") self.zoomTo(box);
      else if (box === self.chosen) self.zoomTo(box);
      else self.choose(box);
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => hover(-1));
    canvas.addEventListener("wheel", (event) => {
      const place = canvas.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) self.zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.06 : 0.004)), (event.clientX - place.left) / pixels());
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) self.pan((event.deltaX || event.deltaY) / pixels());
      else return;
      event.preventDefault();
    }, {passive: false});
    const hover = (box) => {
      if (box === self.under) return;
      self.under = box;
      showDetail(self, box >= 0 ? box : self.chosen);
      self.draw();
    };
  };

  const listenToKeys = (self) => {
    const walk = (way) => () => self.choose(self.neighbour(self.chosen, way));
    const keys = {
      ArrowUp: walk("up"), ArrowDown: walk("down"), ArrowLeft: walk("left"), ArrowRight: walk("right"),
      Enter: () => self.chosen >= 0 && self.zoomTo(self.chosen),
      Escape: self.back, Backspace: self.back, Home: self.whole, 0: self.whole,
      "+": () => self.zoom(0.7), "=": () => self.zoom(0.7), w: () => self.zoom(0.7),
      "-": () => self.zoom(1.43), s: () => self.zoom(1.43), a: () => self.pan(-0.2), d: () => self.pan(0.2),
      "[": () => goToStep(-1), "]": () => goToStep(1), n: () => search.next(1), N: () => search.next(-1), p: () => search.next(-1),
    };
    self.host.addEventListener("keydown", (event) => {
      const does = keys[event.key];
      if (!does || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      does();
    });
  };

  // --- the two pictures
  const flameSource = {
    count: frames, top: 4, margin: 0, clickZooms: true, within: true,
    rows: () => depthOf.reduce((most, depth) => Math.max(most, depth + 1), 1),
    row: (frame) => depthOf[frame],
    kind: (frame) => (flame.name[frame] < 0 ? -1 : flame.kind[frame]),
    shade: (frame) => shade[flame.name[frame]],
    name: frameName,
    matches: (frame) => search.has(flame.name[frame]),
    path: pathOf,
    numbers: (frame) => {
      const above = flame.above[frame], whole = flamePicture.source.whole, told = [];
      const weights = width.of;
      const calls = flame.count[frame];
      if (width !== WIDTHS.time) told.push([width.title, `${width.text(weights[frame])}, ${percent(weights[frame], whole)}`]);
      told.push(["Total", `${time(flame.total[frame])}, ${percent(flame.total[frame], wholeTime)}`]);
      if (above >= 0) told.push(["of the frame above", percent(flame.total[frame], flame.total[above])]);
      told.push(["Self", time(flame.self[frame])]);
      if (calls) told.push(["Calls", number(calls)]);
      if (calls > 1 && flame.name[frame] >= 0) told.push(["Mean", time(flame.total[frame] / calls)], ["Longest", time(flame.longest[frame])]);
      if (flame.cpu[frame] >= 0) told.push(["Worked", `${time(flame.cpu[frame])}, ${percent(flame.cpu[frame], flame.total[frame])}`]);
      if (WIDTHS.memory.of[frame]) told.push(["Allocated", bytes(WIDTHS.memory.of[frame])]);
      if (flame.name[frame] >= 0 && calls) told.push(["Kind", data.kinds[flame.kind[frame]]]);
      return told;
    },
  };
  const wholeTime = below[frames].reduce((total, frame) => total + flame.total[frame], 0);
  const flamePicture = picture($("flame").querySelector(".picture"), flameSource);

  const boxAround = (box) => {
    let found = -1;
    for (let other = box - 1; other >= 0 && timeline.lane[other] === timeline.lane[box]; other--) {
      if (timeline.depth[other] === timeline.depth[box] - 1 && boxStart[other] <= boxStart[box] && boxEnd[other] >= boxEnd[box]) {
        found = other;
        break;
      }
    }
    return found;
  };
  const timelineSource = {
    count: boxes, top: AXIS, margin: 0.02, keepEmpty: true, start: boxStart, end: boxEnd, whole: timeline.whole || 1,
    rows: () => laneRows,
    row: (box) => laneRow[timeline.lane[box]] + 1 + timeline.depth[box],
    kind: (box) => timeline.kind[box],
    shade: (box) => shade[timeline.name[box]],
    name: (box) => (timeline.step[box] >= 0 ? `${boxName(box)} #${timeline.step[box]}` : boxName(box)),
    matches: (box) => timeline.name[box] >= 0 && search.has(timeline.name[box]),
    path: (box) => {
      const path = [];
      for (; box >= 0; box = boxAround(box)) path.unshift(box);
      return path;
    },
    numbers: (box) => {
      const long = boxEnd[box] - boxStart[box], told = [];
      if (timeline.name[box] < 0) told.push(["Packed", `${plural(timeline.count[box], "range")}, too short to draw one by one`], ["Busy", `${time(timeline.busy[box])} of ${time(long)}`]);
      else {
        told.push(["Length", time(long)], ["Self", time(timeline.busy[box])]);
        if (timeline.cpu[box] >= 0) told.push(["Worked", `${time(timeline.cpu[box])}, ${percent(timeline.cpu[box], long)}`], ["Waited", time(Math.max(0, long - timeline.cpu[box]))]);
        told.push(["Kind", data.kinds[timeline.kind[box]]]);
      }
      told.push(["Begins at", time(boxStart[box])], ["Thread", laneName(timeline.lane[box])]);
      return told;
    },
    under: (context, self, x, pixels, scrolled, height) => {
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      for (const at of ticks(self, pixels)) {
        context.globalAlpha = 0.55;
        context.beginPath();
        context.moveTo(Math.round(x(at)) + 0.5, 0);
        context.lineTo(Math.round(x(at)) + 0.5, height);
        context.stroke();
      }
      context.globalAlpha = 1;
      context.font = "600 12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
      laneRow.forEach((row, lane) => {
        const y = AXIS + row * ROW - scrolled;
        if (y < -ROW || y > height) return;
        context.fillStyle = colours.raised;
        context.fillRect(0, y, pixels, ROW);
        context.fillStyle = colours.ink;
        context.fillText(laneName(lane), 6, y + ROW / 2);
      });
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
    },
    over: (context, self, x, pixels) => {
      context.fillStyle = colours.paper;
      context.fillRect(0, 0, pixels, AXIS - 1);
      context.fillStyle = colours.line;
      context.fillRect(0, AXIS - 1, pixels, 1);
      context.fillStyle = colours.quiet;
      const marks = ticks(self, pixels);
      for (const at of marks) {
        const text = tickText(at, marks.length > 1 ? marks[1] - marks[0] : at);
        const wide = context.measureText(text).width;
        const left = Math.max(4, x(at) - wide / 2);
        if (left + wide < pixels - 2) context.fillText(text, left, AXIS / 2);
      }
    },
  };
  const ticks = (self, pixels) => {
    const rough = ((self.to - self.from) / Math.max(1, pixels)) * 110, power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) || power, found = [];
    for (let at = Math.ceil(self.from / step) * step; at <= self.to && found.length < 60; at += step) found.push(at);
    return found;
  };
  const tickText = (ns, step) => {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]].find(([size]) => Math.max(step, 1) >= size / 10) || [1, "ns"];
    return `${(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
  };
  const timelinePicture = picture($("timeline").querySelector(".picture"), timelineSource);
  const pictures = {flame: flamePicture, timeline: timelinePicture};
  let current = "flame";

  // --- steps, or where there are none, what is outermost and the program's own
  const byStart = (one, other) => boxStart[one] - boxStart[other];
  const all = Array.from({length: boxes}, (_, box) => box);
  let steps = all.filter((box) => timeline.step[box] >= 0).sort(byStart);
  for (let depth = 0; depth < 3 && steps.length < 2; depth++) {
    steps = all.filter((box) => timeline.depth[box] === depth && (timeline.kind[box] === 2 || timeline.kind[box] === 3)).sort(byStart);
  }
  const inLane = new Map();
  for (const box of steps) inLane.set(timeline.lane[box], (inLane.get(timeline.lane[box]) || 0) + 1);
  const [busiest] = [...inLane].sort((one, other) => other[1] - one[1])[0] || [];
  if (steps.length && timeline.step[steps[0]] >= 0) steps = steps.filter((box) => timeline.lane[box] === busiest);  // ranks make the same ones
  let step = -1;
  const goToStep = (by) => {
    if (!steps.length) return;
    step = Math.max(0, Math.min(steps.length - 1, step + by));
    timelinePicture.zoomTo(steps[step]);
    $("step").textContent = `${timelineSource.name(steps[step])} (${step + 1} of ${steps.length})`;
  };

  // --- what is under the pointer, or chosen
  const showDetail = (self, box) => {
    const panel = $("detail");
    panel.className = box < 0 ? "empty" : "";
    if (box < 0) {
      const what = self.source === flameSource ? "frame" : "box", clicks = self.source.clickZooms && !touch.matches ? "A click zooms" : touch.matches ? "A second tap zooms" : "A second click zooms";
      panel.replaceChildren(make("p", {className: "quiet", textContent: `${touch.matches ? "Tap" : "Point at"} a ${what} for its numbers. ${clicks}, Back leads back.`}));
      return;
    }
    const path = self.source.path(box), last = path.pop(), way = make("div", {className: "path"});
    for (const above of path) way.append(make("button", {className: "as-link", type: "button", textContent: self.source.name(above), click: () => self.zoomTo(above)}), "\u203a");
    way.append(make("b", {textContent: self.source.name(last)}));
    const numbers = self.source.numbers(box).map(([title, value]) => make("div", null, make("dt", {textContent: title}), make("dd", {textContent: value})));
    panel.replaceChildren(make("button", {className: "show", type: "button", textContent: "Zoom to it", click: () => self.zoomTo(box)}), way, make("dl", null, ...numbers));
  };

  // --- finding names
  const search = {
    text: "", matching: new Set(), at: -1, found: [],
    has: (name) => search.matching.has(name),
    set: (text) => {
      search.text = text.trim().toLowerCase();
      search.matching = new Set();
      if (search.text) data.names.forEach((name, index) => { if (name.toLowerCase().includes(search.text)) search.matching.add(index); });
      search.at = -1;
      search.refresh();
    },
    refresh: () => {
      const self = pictures[current], source = self && self.source;
      search.found = !search.text || !self ? [] : Array.from({length: source.count}, (_, box) => box).filter(source.matches);
      if (source === flameSource) search.found.sort((one, other) => width.of[other] - width.of[one]);
      $("matches").textContent = search.text ? search.told() : "";
      if (self) self.draw();
      if (current === "table") fillTable();
    },
    told: () => {
      if (current === "table") return plural(data.table.name.filter(search.has).length, "name");
      if (!search.found.length) return "no match";
      const place = search.at >= 0 ? `${search.at + 1} of ` : "";
      if (current === "timeline") return `${place}${plural(search.found.length, "match")}; Enter: next`;
      const inMatch = new Uint8Array(frames);
      let share = 0;
      for (let frame = 0; frame < frames; frame++) {
        const above = flame.above[frame], inside = above >= 0 && inMatch[above];
        const matches = flame.name[frame] >= 0 && search.has(flame.name[frame]);
        if (matches && !inside) share += flamePicture.source.end[frame] - flamePicture.source.start[frame];
        inMatch[frame] = inside || matches ? 1 : 0;
      }
      return `${place}${plural(search.found.length, "match")}, ${percent(share, flamePicture.source.whole)}; Enter: next`;
    },
    next: (by) => {
      if (!search.found.length) return;
      search.at = (search.at + by + search.found.length) % search.found.length;
      pictures[current].zoomTo(search.found[search.at]);
      $("matches").textContent = search.told();
    },
  };

  // --- the table
  const COLUMNS = [
    ["Name", "name", null], ["Self", "self", time], ["Self\u00a0%", "share", (own) => percent(own, wholeSelf)], ["Total", "total", time], ["Calls", "count", number],
    ["Mean", "mean", time], ["Longest", "longest", time], ["Allocated", "allocated", bytes],
  ].filter(([, key]) => key !== "allocated" || data.facts.memory);
  const wholeSelf = flame.self.reduce((total, own) => total + Math.max(0, own), 0);
  data.table.share = data.table.self;
  const mostSelf = Math.max(1, ...data.table.self);
  data.table.mean = data.table.total.map((total, row) => total / Math.max(1, data.table.count[row]));
  let sorted = {by: "self", down: true}, most = 150;
  const fillTable = () => {
    const table = data.table, way = sorted.down ? -1 : 1;
    const rows = table.name.map((_, row) => row).filter((row) => !search.text || search.has(table.name[row]));
    const compare = sorted.by === "name" ? (one, other) => nameOf(table.name[one]).localeCompare(nameOf(table.name[other])) : (one, other) => table[sorted.by][one] - table[sorted.by][other];
    rows.sort((one, other) => way * compare(one, other));
    const head = make("tr", null, ...COLUMNS.map(([title, key]) => make("th", {scope: "col", "aria-sort": sorted.by === key ? (sorted.down ? "descending" : "ascending") : "none"},
      make("button", {type: "button", textContent: title + (sorted.by === key ? (sorted.down ? " \u25be" : " \u25b4") : ""), click: () => {
        sorted = {by: key, down: sorted.by === key ? !sorted.down : key !== "name"};
        fillTable();
      }}))));
    const body = rows.slice(0, most).map((row) => make("tr", null, ...COLUMNS.map(([, key, text]) => cell(row, key, text))));
    const parts = [make("table", null, make("thead", null, head), make("tbody", null, ...body))];
    if (rows.length > most) parts.push(make("p", null, make("button", {type: "button", textContent: `Show all ${number(rows.length)}`, click: () => { most = Infinity; fillTable(); }})));
    if (table.left_out) parts.push(make("p", {className: "quiet", textContent: `${plural(table.left_out, "name")} with less time for themselves left out.`}));
    if (!rows.length) parts.push(make("p", {className: "quiet", textContent: "No name has that in it."}));
    $("table").replaceChildren(...parts);
  };
  const cell = (row, key, text) => {
    const table = data.table;
    if (key === "name") {
      const swatch = make("i");
      swatch.style.background = `var(--k${table.kind[row]})`;
      return make("td", null, make("div", {className: "name"}, swatch, make("button", {className: "as-link", type: "button", title: "Show it in the flame graph", textContent: nameOf(table.name[row]), click: () => showPath([nameOf(table.name[row])])})));
    }
    if (key !== "self") return make("td", {textContent: text(table[key][row])});
    const bar = make("i");
    bar.style.width = `${Math.min(100, Math.max(0, (100 * table.self[row]) / mostSelf))}%`;
    return make("td", {className: "share-bar"}, `${time(table.self[row])}  `, make("span", null, bar));
  };

  /* The widest frame whose path ends with these names. */
  const showPath = (names) => {
    const found = widest(names);
    if (found < 0) return names.length > 1 ? showPath(names.slice(1)) : false;
    show("flame");
    flamePicture.zoomTo(found);
    $("flame").scrollIntoView({block: "nearest"});
    flamePicture.host.focus({preventScroll: true});
    return true;
  };
  const widest = (names) => {
    let found = -1;
    for (let frame = 0; frame < frames; frame++) {
      let at = frame, place = names.length - 1;
      while (place >= 0 && at >= 0 && frameName(at) === names[place]) [at, place] = [flame.above[at], place - 1];
      if (place < 0 && (found < 0 || flame.total[frame] > flame.total[found])) found = frame;
    }
    return found;
  };

  // --- findings, facts and what stands around the pictures
  const showFindings = () => {
    $("findings").hidden = !data.findings.length;
    $("findings").querySelector("ol").replaceChildren(...data.findings.map((finding) => {
      const title = make("p", null, make("strong", {textContent: finding.title}));
      if (finding.serious) title.prepend(make("span", {className: "sign", textContent: "\u25b2 Serious"}));
      const item = make("li", {className: finding.serious ? "serious" : ""}, make("span", {className: "share", textContent: percent(finding.share, 1)}), title,
        make("details", {className: "evidence", open: !narrow.matches}, make("summary", {className: "quiet", textContent: "Why, and what to do"}),
          make("p", {textContent: finding.text}), make("p", {className: "quiet", textContent: finding.next_step}), ...(finding.code ? [make("code", {textContent: finding.code})] : [])));
      if (finding.anchor.length) item.append(make("button", {className: "show", type: "button", textContent: "Show it", click: () => showPath(finding.anchor)}));
      return item;
    }));
  };

  const MEANING = {
    flame: [["Frame", "All calls of one name at one place: what it lies in stands above it, what ran in it below. Time of all threads is added up."],
      ["Total", "From begin to end, of all calls together."], ["Self", "Total without the frames below."],
      ["Worked", "For how long the thread had the processor: the rest it waited. Known of module calls, steps and outermost blocks."]],
    timeline: [["Lane", "A thread. Below each other: what ran in what. Empty: the thread waited, or ran what is not recorded."],
      ["Grey", "Ranges too short to draw one by one, and how many they are."],
      ["Worked", "For how long the thread had the processor; else it waited."]],
    table: [["Self", "Time in calls of that name, without the ranges inside them. All of these add up to the whole; the bar is the share."],
      ["Total", "From begin to end, of all calls together. Where one of that name runs in another, both count."],
      ["Mean, longest", "Of one call, from begin to end."]],
  };
  if (data.facts.memory) for (const name of ["flame", "table"]) MEANING[name].push(["Allocated", "Bytes that were allocated, whether or not they were freed again."]);
  const KEYS = {
    flame: [["Enter", "zoom"], ["Esc", "back"], ["Arrows", "move"], ["n", "next match"], ["/", "find"]],
    timeline: [["W S", "zoom"], ["A D", "pan"], ["Arrows", "move"], ["[ ]", "steps"], ["Esc", "back"], ["/", "find"]],
    table: [["/", "find"]],
  };

  const tools = () => {
    const self = pictures[current];
    $("tools").hidden = !self;
    $("detail").hidden = !self;
    if (!self) return;
    $("back").disabled = !self.history.length;
    $("whole").disabled = self.isWhole();
    $("steps").hidden = current !== "timeline" || steps.length < 2;
    $("widths").hidden = current !== "flame";
  };

  const show = (name) => {
    current = name;
    for (const other of ["flame", "timeline", "table"]) {
      $(other).hidden = other !== name;
      $(`tab-${other}`).setAttribute("aria-selected", other === name);
      $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    const keys = KEYS[name].flatMap(([key, does]) => [make("kbd", {textContent: key}), ` ${does}   `]);
    $("meaning").replaceChildren(...MEANING[name].flatMap(([title, text]) => [make("dt", {textContent: title}), make("dd", {textContent: text})]), make("dt", {textContent: "Keys"}), make("dd", null, ...keys));
    if (pictures[name]) {
      pictures[name].resize();
      showDetail(pictures[name], pictures[name].chosen);
    }
    tools();
    search.refresh();
  };

  const setWidth = (name) => {
    width = WIDTHS[name];
    Object.assign(flameSource, laidOut(width.of));
    flamePicture.arrange();
    search.refresh();
    tools();
  };

  const setTheme = (theme) => {
    const dark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = `Theme: ${theme}`;
    readColours();
    for (const self of Object.values(pictures)) self.draw();
  };

  const begin = () => {
    document.querySelector("main").hidden = false;
    const facts = data.facts;
    const told = [plural(facts.ranges, "range"), plural(facts.threads, "thread"), time(facts.length), `from ${facts.began}`];
    if (facts.processes > 1) told.splice(1, 0, plural(facts.processes, "process"));
    $("facts").textContent = told.join(" \u00b7 ");
    $("notes").hidden = !data.notes.length;
    $("notes").textContent = data.notes.join(" ");
    const present = new Set(flame.kind.filter((_, frame) => flame.count[frame] && flame.name[frame] >= 0));
    $("kinds").replaceChildren(...data.kinds.flatMap((name, kind) => {
      if (!present.has(kind)) return [];
      const swatch = make("i");
      swatch.style.background = `var(--k${kind})`;
      return [make("li", null, swatch, name)];
    }));
    for (const [name, one] of Object.entries(WIDTHS)) if (name !== "memory" || facts.memory) $("width").append(make("option", {value: name, textContent: one.title}));
    showFindings();

    const themes = ["system", "light", "dark"];
    let theme = 0;
    $("theme").addEventListener("click", () => setTheme(themes[(theme = (theme + 1) % themes.length)]));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(themes[theme]));
    $("width").addEventListener("change", (event) => setWidth(event.target.value));
    const onTool = {back: "back", whole: "whole", in: "zoom", out: "zoom"};
    for (const id of Object.keys(onTool)) $(id).addEventListener("click", () => pictures[current][onTool[id]](id === "in" ? 0.6 : 1.67));
    $("previous").addEventListener("click", () => goToStep(-1));
    $("next").addEventListener("click", () => goToStep(1));
    const tabs = ["flame", "timeline", "table"];
    tabs.forEach((name, at) => {
      $(`tab-${name}`).addEventListener("click", () => show(name));
      $(`tab-${name}`).addEventListener("keydown", (event) => {
        const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        if (!by) return;
        show(tabs[(at + by + tabs.length) % tabs.length]);
        $(`tab-${current}`).focus();
      });
    });
    $("search").addEventListener("input", (event) => search.set(event.target.value));
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && pictures[current]) search.next(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        event.target.value = "";
        search.set("");
        if (pictures[current]) pictures[current].host.focus();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.matches("input, select")) return;
      event.preventDefault();
      $("search").focus();
    });

    setTheme("system");
    setWidth("time");
    timelinePicture.arrange();
    if (steps.length) $("step").textContent = plural(steps.length, timeline.step[steps[0]] >= 0 ? "step" : "block");
    show("flame");
    document.documentElement.dataset.ready = "yes";
  };
  begin();
})();
