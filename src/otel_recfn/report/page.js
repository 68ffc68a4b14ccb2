/* The page around the pictures: the chosen box, the search for names, the table, findings and facts. Texts of a trace are only
   ever drawn on a canvas or set as the text of a node, so that none is run. */
// --- the box under the pointer, or the chosen one
const showDetail = (self, box) => {
  const panel = $("detail");
  panel.className = box < 0 ? "empty" : "";
  if (box < 0) {
    const what = self.source === flameSource ? "frame" : "box",
      clicks =
        self.source.clickZooms && !touch.matches
          ? "A click zooms"
          : touch.matches
            ? "A second tap zooms"
            : "A second click zooms";
    panel.replaceChildren(
      make("p", {
        className: "quiet",
        textContent: `${touch.matches ? "Tap" : "Point at"} a ${what} for its numbers. ${clicks}; Back goes back.`,
      }),
    );
    return;
  }
  const path = self.source.path(box),
    last = path.pop(),
    way = make("div", {className: "path"});
  for (const above of path)
    way.append(
      make("button", {
        className: "as-link",
        type: "button",
        textContent: self.source.name(above),
        click: () => self.zoomTo(above),
      }),
      "\u203a",
    );
  way.append(make("b", {textContent: self.source.name(last)}));
  const numbers = self.source
    .numbers(box)
    .map(([title, value, click]) =>
      make("div", null, make("dt", {textContent: title}), make("dd", null, click ? asLink(value, click, IN_TIME) : value)),
    );
  panel.replaceChildren(
    make("button", {className: "show", type: "button", textContent: "Zoom to it", click: () => self.zoomTo(box)}),
    way,
    make("dl", null, ...numbers),
  );
};

const IN_TIME = "Show it in the time line";
const asLink = (text, click, title) => make("button", {className: "as-link", type: "button", title, textContent: text, click});

/* Shows a part of the time line, and the box that is that part, if it is drawn by itself. */
const showMoment = (start, length) => {
  show("timeline");
  const box = all.find((each) => boxStart[each] === start && boxEnd[each] === start + length && timeline.name[each] >= 0);
  if (box !== undefined) timelinePicture.zoomTo(box);
  else {
    timelinePicture.choose(-1);
    timelinePicture.go(start - length * timelineSource.margin, start + length * (1 + timelineSource.margin));
  }
  $("timeline").scrollIntoView({block: "nearest"});
  timelinePicture.host.focus({preventScroll: true});
};

// --- the search for names
const search = {
  text: "",
  matching: new Set(),
  at: -1,
  found: [],
  has: (name) => search.matching.has(name),
  set: (text) => {
    search.text = text.trim().toLowerCase();
    search.matching = new Set();
    if (search.text)
      data.names.forEach((name, index) => {
        if (name.toLowerCase().includes(search.text)) search.matching.add(index);
      });
    search.at = -1;
    search.refresh();
  },
  refresh: () => {
    const self = pictures[current],
      source = self && self.source;
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
      const above = flame.above[frame],
        inside = above >= 0 && inMatch[above];
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
  ["Name", "name", null],
  ["Self", "self", time],
  ["Self\u00a0%", "shared", (own) => (own ? percent(own, data.table.whole) : "")],
  ["Total", "total", time],
  ["Calls", "count", number],
  ["Mean", "mean", time],
  ["Longest", "longest", time],
  ["Allocated", "allocated", bytes],
].filter(([, key]) => key !== "allocated" || data.facts.memory);
const mostSelf = Math.max(1, ...data.table.self);
data.table.mean = data.table.total.map((total, row) => total / Math.max(1, data.table.count[row]));
let sorted = {by: "self", down: true},
  most = 150;
const fillTable = () => {
  const table = data.table,
    way = sorted.down ? -1 : 1;
  const rows = table.name.map((_, row) => row).filter((row) => !search.text || search.has(table.name[row]));
  const compare =
    sorted.by === "name"
      ? (one, other) => nameOf(table.name[one]).localeCompare(nameOf(table.name[other]))
      : (one, other) => table[sorted.by][one] - table[sorted.by][other];
  rows.sort((one, other) => way * compare(one, other));
  const head = make(
    "tr",
    null,
    ...COLUMNS.map(([title, key], at) =>
      make(
        "th",
        {scope: "col", "aria-sort": sorted.by === key ? (sorted.down ? "descending" : "ascending") : "none"},
        make("button", {
          type: "button",
          textContent: title + (sorted.by === key ? (sorted.down ? " \u25be" : " \u25b4") : ""),
          click: () => {
            sorted = {by: key, down: sorted.by === key ? !sorted.down : key !== "name"};
            fillTable();
            $("table").querySelectorAll("th button")[at].focus();
          },
        }),
      ),
    ),
  );
  const body = rows.slice(0, most).map((row) => make("tr", null, ...COLUMNS.map(([, key, text]) => cell(row, key, text))));
  const parts = [make("table", null, make("thead", null, head), make("tbody", null, ...body))];
  if (rows.length > most)
    parts.push(
      make(
        "p",
        null,
        make("button", {
          type: "button",
          textContent: `Show all ${number(rows.length)}`,
          click: () => {
            most = Infinity;
            fillTable();
          },
        }),
      ),
    );
  if (table.left_out)
    parts.push(
      make("p", {className: "quiet", textContent: `${plural(table.left_out, "name")} with less time for themselves left out.`}),
    );
  if (!rows.length) parts.push(make("p", {className: "quiet", textContent: "No name contains that."}));
  $("table").replaceChildren(...parts);
};
const cell = (row, key, text) => {
  const table = data.table;
  if (key === "name") {
    const swatch = make("i");
    swatch.style.background = `var(--k${table.kind[row]})`;
    return make(
      "td",
      null,
      make(
        "div",
        {className: "name"},
        swatch,
        make("button", {
          className: "as-link",
          type: "button",
          title: "Show it in the flame graph",
          textContent: nameOf(table.name[row]),
          click: () => showPath([nameOf(table.name[row])]),
        }),
      ),
    );
  }
  if (key === "longest")
    return make(
      "td",
      null,
      asLink(text(table.longest[row]), () => showMoment(table.longest_at[row], table.longest[row]), IN_TIME),
    );
  if (key !== "self") return make("td", {textContent: text(table[key][row]) || ""});
  const bar = make("i");
  bar.style.width = `${Math.min(100, Math.max(0, (100 * table.self[row]) / mostSelf))}%`;
  return make("td", {className: "share-bar"}, `${time(table.self[row])}  `, make("span", null, bar));
};

// --- the steps, the slowest first
const fillSteps = () => {
  const severalProcesses = data.facts.processes > 1,
    longest = Math.max(1, ...data.steps.map((each) => each.wall));
  const head = ["Step", ...(severalProcesses ? ["Process"] : []), "Thread", "Wall", "Outside PyTorch", "Outside\u00a0%"];
  const body = data.steps.map((each) => {
    const bar = make("i");
    bar.style.width = `${(100 * each.wall) / longest}%`;
    return make(
      "tr",
      null,
      make("td", null, asLink(each.name, () => showMoment(each.start, each.wall), IN_TIME)),
      ...(severalProcesses ? [make("td", {textContent: each.process})] : []),
      make("td", {textContent: each.thread}),
      make("td", {className: "share-bar"}, `${time(each.wall)}  `, make("span", null, bar)),
      make("td", {textContent: time(each.outside)}),
      make("td", {textContent: percent(each.outside, each.wall)}),
    );
  });
  const titles = make("tr", null, ...head.map((title) => make("th", {scope: "col", textContent: title})));
  $("tab-step-list").hidden = !data.steps.length;
  $("step-list").replaceChildren(make("table", null, make("thead", null, titles), make("tbody", null, ...body)));
};

/* Shows the widest frame whose path ends with these names. */
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
    let at = frame,
      place = names.length - 1;
    while (place >= 0 && at >= 0 && frameName(at) === names[place]) [at, place] = [flame.above[at], place - 1];
    if (place < 0 && (found < 0 || flame.total[frame] > flame.total[found])) found = frame;
  }
  return found;
};

// --- findings and facts
const showFindings = () => {
  $("findings").hidden = !data.findings.length;
  $("findings")
    .querySelector("ol")
    .replaceChildren(
      ...data.findings.map((finding) => {
        const title = make("p", null, make("strong", {textContent: finding.title}));
        if (finding.serious) title.prepend(make("span", {className: "sign", textContent: "\u25b2 Serious"}));
        const item = make(
          "li",
          {className: finding.serious ? "serious" : ""},
          make("span", {className: "share", textContent: finding.share ? `${Math.round(100 * finding.share)}\u00a0%` : ""}),
          title,
          make(
            "details",
            {className: "evidence", open: !narrow.matches},
            make("summary", {className: "quiet", textContent: "Why, and what to do"}),
            make("p", {textContent: finding.text}),
            make("p", {className: "quiet", textContent: finding.next_step}),
            ...(finding.code ? [make("code", {textContent: finding.code})] : []),
          ),
        );
        if (finding.anchor.length)
          item.append(
            make("button", {className: "show", type: "button", textContent: "Show it", click: () => showPath(finding.anchor)}),
          );
        return item;
      }),
    );
};

const showSentences = () => {
  for (const part of ["sentences", "gpu"]) {
    $(part).hidden = !data[part].length;
    $(part)
      .querySelector("ul")
      .replaceChildren(...data[part].map((sentence) => make("li", {textContent: sentence})));
  }
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

const TABS = ["flame", "timeline", "table", "step-list"];
const show = (name) => {
  current = name;
  for (const other of TABS) {
    $(other).hidden = other !== name;
    $(`tab-${other}`).setAttribute("aria-selected", other === name);
    $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
  }
  const keys = KEYS[name].flatMap(([key, does]) => [make("kbd", {textContent: key}), ` ${does}   `]);
  $("meaning").replaceChildren(
    ...MEANING[name].flatMap(([title, text]) => [make("dt", {textContent: title}), make("dd", {textContent: text})]),
    ...(keys.length ? [make("dt", {textContent: "Keys"}), make("dd", null, ...keys)] : []),
  );
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
  const told = [plural(facts.ranges, "range"), plural(facts.threads, "thread"), time(facts.length)];
  if (!facts.began.startsWith("1970")) told.push(`from ${facts.began}`); // else times count from when a machine started
  if (facts.processes > 1) told.splice(1, 0, plural(facts.processes, "process"));
  $("facts").textContent = told.join(" \u00b7 ");
  $("notes").hidden = !data.notes.length;
  $("notes").textContent = data.notes.join(" ");
  const present = new Set(flame.kind.filter((_, frame) => flame.count[frame] && flame.name[frame] >= 0));
  $("kinds").replaceChildren(
    ...data.kinds.flatMap((name, kind) => {
      if (!present.has(kind)) return [];
      const swatch = make("i");
      swatch.style.background = `var(--k${kind})`;
      return [make("li", null, swatch, name)];
    }),
  );
  for (const [name, one] of Object.entries(WIDTHS))
    if (name !== "memory" || facts.memory) $("width").append(make("option", {value: name, textContent: one.title}));
  showFindings();
  showSentences();
  fillSteps();

  const themes = ["system", "light", "dark"];
  let theme = 0;
  $("theme").addEventListener("click", () => setTheme(themes[(theme = (theme + 1) % themes.length)]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(themes[theme]));
  $("width").addEventListener("change", (event) => setWidth(event.target.value));
  const onTool = {back: "back", whole: "whole", in: "zoom", out: "zoom"};
  for (const id of Object.keys(onTool))
    $(id).addEventListener("click", () => pictures[current][onTool[id]](id === "in" ? 0.6 : 1.67));
  $("previous").addEventListener("click", () => goToStep(-1));
  $("next").addEventListener("click", () => goToStep(1));
  const tabs = TABS.filter((name) => !$(`tab-${name}`).hidden);
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
