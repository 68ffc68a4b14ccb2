/* The two pictures: the texts of their boxes, the way from step to step, and the meaning of numbers and keys. */
const flameSource = {
  count: frames,
  top: 4,
  margin: 0,
  clickZooms: true,
  within: true,
  rows: () => depthOf.reduce((most, depth) => Math.max(most, depth + 1), 1),
  row: (frame) => depthOf[frame],
  kind: (frame) => (flame.name[frame] < 0 ? -1 : flame.kind[frame]),
  shade: (frame) => shade[flame.name[frame]],
  name: frameName,
  matches: (frame) => search.has(flame.name[frame]),
  path: pathOf,
  numbers: (frame) => {
    const above = flame.above[frame],
      whole = flamePicture.source.whole,
      told = [];
    const weights = width.of;
    const calls = flame.count[frame];
    if (width !== WIDTHS.time) told.push([width.title, `${width.text(weights[frame])}, ${percent(weights[frame], whole)}`]);
    told.push(["Total", `${time(flame.total[frame])}, ${percent(flame.total[frame], wholeTime)}`]);
    if (above >= 0) told.push(["of the frame above", percent(flame.total[frame], flame.total[above])]);
    told.push(["Self", time(flame.self[frame])]);
    if (calls) told.push(["Calls", number(calls)]);
    if (calls > 1 && flame.name[frame] >= 0)
      told.push(
        ["Mean", time(flame.mean[frame])],
        ["Longest", time(flame.longest[frame]), () => showMoment(flame.longest_at[frame], flame.longest[frame])],
      );
    if (flame.cpu[frame] >= 0)
      told.push(["Worked", `${time(flame.cpu[frame])}, ${percent(flame.cpu[frame], flame.total[frame])}`]);
    if (WIDTHS.memory.of[frame]) told.push(["Allocated", bytes(WIDTHS.memory.of[frame])]);
    if (flame.name[frame] >= 0 && calls) told.push(["Kind", data.kinds[flame.kind[frame]]]);
    return told;
  },
};
const wholeTime = below[frames].reduce((total, frame) => total + flame.total[frame], 0);
const flamePicture = picture($("flame").querySelector(".picture"), flameSource);

// --- the memory in use, above the lanes
const mostBytes = (track) => track.bytes.reduce((most, count) => Math.max(most, count), 1);
const memoryTitle = (track) => `${ofProcess(track.process)}Memory in use, at most ${bytes(mostBytes(track))}`;
const drawMemory = (context, track, x, pixels, top) => {
  const tall = MEMORY_ROWS * ROW - 2,
    scale = tall / mostBytes(track);
  context.fillStyle = colours.kinds[0];
  track.at.forEach((at, index) => {
    // whole pixels, so that nothing shines through between neighbours
    const left = Math.round(Math.max(x(at), 0)),
      right = Math.round(Math.min(index + 1 < track.at.length ? x(track.at[index + 1]) : pixels, pixels));
    const high = track.bytes[index] * scale;
    if (right > 0 && left < pixels) context.fillRect(left, top + tall - high, Math.max(right - left, 1), high);
  });
};

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
  count: boxes,
  top: AXIS,
  margin: 0.02,
  keepEmpty: true,
  start: boxStart,
  end: boxEnd,
  whole: timeline.whole || 1,
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
    const long = boxEnd[box] - boxStart[box],
      told = [];
    if (timeline.name[box] < 0)
      told.push(
        ["Packed", `${plural(timeline.count[box], "range")}, too short to draw one by one`],
        ["Busy", `${time(timeline.busy[box])} of ${time(long)}`],
      );
    else {
      told.push(["Length", time(long)], ["Self", time(timeline.busy[box])]);
      if (timeline.cpu[box] >= 0)
        told.push(
          ["Worked", `${time(timeline.cpu[box])}, ${percent(timeline.cpu[box], long)}`],
          ["Waited", time(Math.max(0, long - timeline.cpu[box]))],
        );
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
    const title = (text, row) => {
      const y = AXIS + row * ROW - scrolled;
      if (y < -ROW || y > height) return;
      context.fillStyle = colours.raised;
      context.fillRect(0, y, pixels, ROW);
      context.fillStyle = colours.ink;
      context.fillText(text, 6, y + ROW / 2);
    };
    timeline.memory.forEach((track, index) => {
      title(memoryTitle(track), memoryRow[index]);
      drawMemory(context, track, x, pixels, AXIS + (memoryRow[index] + 1) * ROW - scrolled);
    });
    laneRow.forEach((row, lane) => title(laneName(lane), row));
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
  const rough = ((self.to - self.from) / Math.max(1, pixels)) * 110,
    power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) || power,
    found = [];
  for (let at = Math.ceil(self.from / step) * step; at <= self.to && found.length < 60; at += step) found.push(at);
  return found;
};
const tickText = (ns, step) => {
  const [size, unit] = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "\u00b5s"],
    [1, "ns"],
  ].find(([size]) => Math.max(step, 1) >= size / 10) || [1, "ns"];
  return `${(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
};
const timelinePicture = picture($("timeline").querySelector(".picture"), timelineSource);
const pictures = {flame: flamePicture, timeline: timelinePicture};
let current = "flame";

// --- steps; without them, the outermost module calls and blocks of the program
const byStart = (one, other) => boxStart[one] - boxStart[other];
const all = Array.from({length: boxes}, (_, box) => box);
let steps = all.filter((box) => timeline.step[box] >= 0).sort(byStart);
for (let depth = 0; depth < 3 && steps.length < 2; depth++) {
  steps = all
    .filter((box) => timeline.depth[box] === depth && (timeline.kind[box] === 2 || timeline.kind[box] === 3))
    .sort(byStart);
}
const inLane = new Map();
for (const box of steps) inLane.set(timeline.lane[box], (inLane.get(timeline.lane[box]) || 0) + 1);
const [busiest] = [...inLane].sort((one, other) => other[1] - one[1])[0] || [];
// ranks have the same steps, so that those of one thread are enough
if (steps.length && timeline.step[steps[0]] >= 0) steps = steps.filter((box) => timeline.lane[box] === busiest);
let step = -1;
const goToStep = (by) => {
  if (!steps.length) return;
  step = Math.max(0, Math.min(steps.length - 1, step + by));
  timelinePicture.zoomTo(steps[step]);
  $("step").textContent = `${timelineSource.name(steps[step])} (${number(step + 1)} of ${number(steps.length)})`;
};

// --- the meaning of numbers and keys
const MEANING = {
  flame: [
    [
      "Frame",
      "All calls of one name at one place: their caller stands above, their callees below. Times of all threads are added up; where asynchronous calls overlap, each moment counts once.",
    ],
    ["Total", "Time from begin to end, of all calls together."],
    ["Self", "Total without the time of the frames below."],
    [
      "Worked",
      "Time in which the thread had the processor; the rest it waited. Known for module calls, steps and outermost blocks.",
    ],
  ],
  timeline: [
    [
      "Lane",
      "A thread. Below a range stands what ran in it. Where nothing stands, the thread waited, or ran what is not recorded.",
    ],
    ["Grey", "Ranges too short to draw one by one, and their number."],
    ["Worked", "Time in which the thread had the processor; the rest it waited."],
  ],
  table: [
    [
      "Self",
      "Time in calls of that name, without the ranges inside them, of all threads. The bar is to compare it.",
    ],
    [
      "Self\u00a0%",
      "The share of the wall time. If several threads work at once, each has a part of the moment; a GPU and threads that only wait have none.",
    ],
    ["Total", "Time from begin to end, of all calls together. Where a call of that name runs in another, both count."],
    ["Mean, longest", "Time of one call, from begin to end. The longest one leads to its place in the time line."],
  ],
  "step-list": [
    ["Wall", "Time from begin to end of a step, the slowest first. Its name leads to its place in the time line."],
    ["Outside PyTorch", "The part in which its thread had no range: Python between operators, files, or waiting."],
  ],
};
if (data.facts.memory)
  for (const name of ["flame", "table"])
    MEANING[name].push(["Allocated", "Bytes that were allocated, whether or not they were freed again."]);
if (timeline.memory.length)
  MEANING.timeline.push(["Memory in use", "What PyTorch allocated and had not freed, beyond the least of the recording."]);
if (timeline.left_out) MEANING.timeline.push(["Left out", `${plural(timeline.left_out, "thread")} that did least.`]);
const KEYS = {
  flame: [
    ["Enter", "zoom"],
    ["Esc", "back"],
    ["Arrows", "move"],
    ["n", "next match"],
    ["/", "find"],
  ],
  timeline: [
    ["W S", "zoom"],
    ["A D", "pan"],
    ["Arrows", "move"],
    ["[ ]", "steps"],
    ["Esc", "back"],
    ["/", "find"],
  ],
  table: [["/", "find"]],
  "step-list": [],
};
