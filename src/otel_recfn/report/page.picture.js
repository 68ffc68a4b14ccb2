/* A picture of boxes in rows, which is zoomed and walked through with mouse, keys and fingers. The part from `from` to `to` is
   seen. `source` has the places of the boxes and their names. */
const picture = (host, source) => {
  const canvas = host.querySelector("canvas"),
    space = host.querySelector(".space"),
    context = canvas.getContext("2d");
  const self = {host, source, from: 0, to: 1, history: [], chosen: -1, under: -1};
  let rows = [],
    pixels = 0,
    height = 0,
    waiting = false,
    moving = 0;

  self.arrange = () => {
    rows = Array.from({length: source.rows()}, () => []);
    for (let box = 0; box < source.count; box++)
      if (source.end[box] > source.start[box] || source.keepEmpty) rows[source.row(box)].push(box);
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
    let low = 0,
      high = row.length;
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
      const row = rows[at],
        y = source.top + at * ROW - scrolled;
      let covered = -1;
      for (let place = firstEndingAfter(row, self.from); place < row.length; place++) {
        const box = row[place];
        if (source.start[box] >= self.to && source.start[box] > self.from) break;
        const left = Math.max(x(source.start[box]), -2),
          right = Math.min(x(source.end[box]), pixels + 2);
        if (right - left < SMALLEST && right <= covered && box !== self.chosen) continue;
        drawBox(box, left, Math.max(right - left, 1), y);
        covered = Math.floor(right) + 1;
      }
    }
    outlineOf(self.under, scrolled, colours.mark, 1.5);
    outlineOf(self.chosen, scrolled, colours.link, 2.5);
    if (source.over) source.over(context, self, x, pixels, scrolled, height);
  };

  const drawBox = (box, left, wide, y) => {
    const kind = source.kind(box),
      packed = kind < 0,
      found = search.text !== "" && source.matches(box);
    context.globalAlpha = search.text === "" ? (packed ? 1 : source.shade(box)) : found ? 1 : 0.22;
    const painted = wide > 3 ? wide - 1 : wide;
    if (context.globalAlpha < 1) {
      // so that nothing shines through
      const alpha = context.globalAlpha;
      context.globalAlpha = 1;
      context.fillStyle = colours.paper;
      context.fillRect(left, y + 1, painted, ROW - 2);
      context.globalAlpha = alpha;
    }
    context.fillStyle = packed ? colours.packed : colours.kinds[kind];
    context.fillRect(left, y + 1, painted, ROW - 2);
    context.globalAlpha = search.text === "" || found ? 1 : 0.5;
    if (wide > 24)
      drawText(
        source.name(box),
        Math.max(left, 0) + 5,
        wide + Math.min(left, 0) - 9,
        y,
        packed ? colours["on-packed"] : colours["on-kind"],
      );
    context.globalAlpha = 1;
    if (found && wide > 2) outline(left, wide, y, colours.mark, 1);
  };

  const outline = (left, wide, y, colour, thick) => {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(left + 0.5, y + 1.5, Math.max(1, wide - 2), ROW - 3);
  };

  /* Outlines a box, over all others, so that the outline of a narrow one is seen, too. */
  const outlineOf = (box, scrolled, colour, thick) => {
    if (box < 0 || source.end[box] < self.from || source.start[box] > self.to) return;
    const left = Math.max(x(source.start[box]), -2);
    const right = Math.min(x(source.end[box]), pixels + 2);
    outline(
      left - (right - left < 4 ? 2 : 0),
      Math.max(right - left, 5),
      source.top + source.row(box) * ROW - scrolled,
      colour,
      thick,
    );
  };

  const drawText = (text, left, room, y, colour) => {
    if (room < 14) return;
    let shown = text,
      wide = context.measureText(text).width;
    if (wide > room) {
      // the kind, which the colour shows, is left out first
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

  /* Shows the part from `from` to `to`; Back returns to the part before. */
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
      const part = Math.min(1, (now - began) / 160),
        eased = 1 - (1 - part) ** 3;
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
    const size = (self.to - self.from) * factor,
      around = self.from + (self.to - self.from) * at;
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
      const half = (self.to - self.from) / 2,
        middle = (source.start[box] + source.end[box]) / 2;
      self.go(middle - half, middle + half, false);
    }
  };
  self.hit = (event) => {
    const place = canvas.getBoundingClientRect(),
      y = event.clientY - place.top;
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
    const at = source.row(box),
      row = rows[at],
      place = row.indexOf(box);
    if (way === "left" || way === "right") return row[place + (way === "right" ? 1 : -1)] ?? box;
    const step = way === "down" ? 1 : -1;
    for (let other = at + step; other >= 0 && other < rows.length; other += step) {
      const from = Math.max(source.start[box], self.from),
        to = Math.min(source.end[box], self.to);
      let widest = -1,
        most = -1;
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
  new ResizeObserver(() => {
    if (host.clientWidth && host.clientWidth !== pixels) self.resize();
  }).observe(host);
  listenToPointers(self, canvas, () => pixels);
  listenToKeys(self);
  return self;
};

const listenToPointers = (self, canvas, pixels) => {
  const down = new Map();
  let moved = false,
    gap = 0;
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
    const before = down.get(event.pointerId),
      way = event.clientX - before;
    if (down.size === 1 && !moved && Math.abs(way) < 5) return;
    if (!moved) canvas.setPointerCapture(event.pointerId);
    moved = true;
    down.set(event.pointerId, event.clientX);
    if (down.size === 2) {
      const now = distance(),
        middle = [...down.values()].reduce((one, other) => one + other) / 2 - canvas.getBoundingClientRect().left;
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
  canvas.addEventListener(
    "wheel",
    (event) => {
      const place = canvas.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey)
        self.zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.06 : 0.004)), (event.clientX - place.left) / pixels());
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey)
        self.pan((event.deltaX || event.deltaY) / pixels());
      else return;
      event.preventDefault();
    },
    {passive: false},
  );
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
    ArrowUp: walk("up"),
    ArrowDown: walk("down"),
    ArrowLeft: walk("left"),
    ArrowRight: walk("right"),
    Enter: () => self.chosen >= 0 && self.zoomTo(self.chosen),
    Escape: self.back,
    Backspace: self.back,
    Home: self.whole,
    0: self.whole,
    "+": () => self.zoom(0.7),
    "=": () => self.zoom(0.7),
    w: () => self.zoom(0.7),
    "-": () => self.zoom(1.43),
    s: () => self.zoom(1.43),
    a: () => self.pan(-0.2),
    d: () => self.pan(0.2),
    "[": () => goToStep(-1),
    "]": () => goToStep(1),
    n: () => search.next(1),
    N: () => search.next(-1),
    p: () => search.next(-1),
  };
  self.host.addEventListener("keydown", (event) => {
    const does = keys[event.key];
    if (!does || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    does();
  });
};
