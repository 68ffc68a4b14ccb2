/* The boxes of the flame graph and of the time line, their colours, and numbers as texts. report/page.py joins the parts of
   the script, in one function. They are ASCII, as the page has no other bytes. */
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const still = matchMedia("(prefers-reduced-motion: reduce)"),
  touch = matchMedia("(hover: none)"),
  narrow = matchMedia("(max-width: 640px)");
const ROW = 20,
  AXIS = 24,
  SMALLEST = 0.6;

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
const time = (ns) =>
  scaled(ns, [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "\u00b5s"],
    [1, "ns"],
  ]);
const bytes = (count) =>
  count &&
  scaled(count, [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ]);
const number = (value) => value.toLocaleString("en-US");
const plural = (value, word) => `${number(value)} ${word}${value === 1 ? "" : /(s|ch)$/.test(word) ? "es" : "s"}`;
const percent = (part, whole) => {
  const share = whole > 0 ? (100 * part) / whole : 0;
  return share > 0 && share < 0.05 ? "<0.1\u00a0%" : share.toFixed(share >= 99.95 ? 0 : 1) + "\u00a0%";
};
const nameOf = (index) => (index < 0 ? "" : data.names[index]);

// --- boxes of the flame graph: parents stand before their children
const flame = data.flame,
  timeline = data.timeline,
  frames = flame.name.length;
const below = Array.from({length: frames + 1}, () => []);
flame.above.forEach((above, frame) => below[above < 0 ? frames : above].push(frame));
const depthOf = new Int32Array(frames);
flame.above.forEach((above, frame) => {
  depthOf[frame] = above < 0 ? 0 : depthOf[above] + 1;
});
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

/* The places where frames begin and end. Frames in one frame may have taken longer than it, side by side on several threads:
   then they share its width. */
const laidOut = (weights) => {
  const start = new Float64Array(frames),
    end = new Float64Array(frames);
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
const boxes = timeline.name.length,
  boxStart = new Float64Array(boxes),
  boxEnd = new Float64Array(boxes);
let sum = 0;
for (let box = 0; box < boxes; box++) {
  boxStart[box] = sum += timeline.start[box];
  boxEnd[box] = sum + timeline.length[box];
}
const deepest = timeline.lanes.map(() => 0);
for (let box = 0; box < boxes; box++)
  deepest[timeline.lane[box]] = Math.max(deepest[timeline.lane[box]], timeline.depth[box] + 1);
const MEMORY_ROWS = 3; // below the title of the track
const memoryRow = timeline.memory.map((_, track) => track * (MEMORY_ROWS + 1));
const laneRow = [];
let laneRows = timeline.memory.length * (MEMORY_ROWS + 1);
for (const depth of deepest) {
  laneRow.push(laneRows);
  laneRows += depth + 1;
}
const boxName = (box) => (timeline.name[box] < 0 ? `${plural(timeline.count[box], "range")}` : nameOf(timeline.name[box]));
const ofProcess = (process) => (timeline.processes.length > 1 ? timeline.processes[process] + ": " : "");
const laneName = (lane) => ofProcess(timeline.lanes[lane].process) + timeline.lanes[lane].thread;

// --- colours
let colours = {};
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  colours = {kinds: data.kinds.map((_, kind) => of(`--k${kind}`))};
  for (const name of ["paper", "raised", "line", "ink", "quiet", "mark", "on-kind", "packed", "on-packed", "link"])
    colours[name] = of(`--${name}`);
};
const shade = data.names.map((name) => {
  let hash = 7;
  for (let at = 0; at < name.length; at++) hash = (hash * 31 + name.charCodeAt(at)) % 9973;
  return 0.74 + 0.26 * ((hash % 7) / 6);
});
