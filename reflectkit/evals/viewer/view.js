
"use strict";
// Shows the episodes in this file. Model output reaches the page only through `visible`, as text nodes.

const ROW = 32; // pixels of a row of the table; as in view.css
const SPARE = 10; // rows drawn above and below the visible ones
const KEPT_BLOCKS = 8;
const LONG = 20000; // characters of a text shown at once; longer texts are not searched for calls
const MOST_MARKS = 2000; // symbols for invisible characters shown at once
const BRIEF = 200; // characters of a name in a row
const NAME = 1000; // characters of a name elsewhere
const MOST_KEYS = 500; // keys of an object, and items of a memory, that are shown
const MOST_FILES = 5000; // files of a tree that are drawn
const DEEPEST = 50; // depth of folders in a tree
const MOST_LINES = 100; // lines of a map
const MOST_RIVALS = 500;
const MARKS = { success: "✓", failure: "✗", truncated: "✂", aborted: "⊘", unknown: "–" };
const byId = (id) => document.getElementById(id);

// ------------------------------------------------------------------------------------------------------------- the data

async function unpack(id) {
  const packed = atob(byId(id).textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(inflated).json();
}

let index;
let columns;
const blocks = new Map(); // number → promise of a block, the one used last at the end
const parsed = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", resolve);
});

function block(number) {
  const held = blocks.get(number) ?? parsed.then(() => unpack(`block-${number}`));
  blocks.delete(number);
  blocks.set(number, held);
  if (blocks.size > KEPT_BLOCKS) blocks.delete(blocks.keys().next().value);
  return held;
}

function blockOf(episode) {
  let low = 0;
  let high = index.blocks.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (index.blocks[middle] <= episode) low = middle;
    else high = middle - 1;
  }
  return low;
}

const LISTS = new Set(["choices", "probabilities"]);
const TEXTS = new Set(["seen", "reflection", "said", "group", "seed", "status", "reason", "tools"]);
const JSONS = new Set(["info", "figures", "data"]);
const ROWS = {
  messages: ([role, content, name]) => ({ role, content, name }),
  ending: ([role, content, name]) => ({ role, content, name }),
  calls: ([name, given]) => ({ name, given: JSON.parse(given) }),
};

function named(fields, row, texts) {
  const found = {};
  fields.forEach((name, at) => {
    const value = row[at];
    if (value === null) found[name] = null;
    else if (TEXTS.has(name)) found[name] = texts[value];
    else if (Object.hasOwn(ROWS, name)) found[name] = value.map((one) => ROWS[name](one.map((text) => texts[text])));
    else if (LISTS.has(name) || JSONS.has(name)) found[name] = JSON.parse(texts[value]);
    else found[name] = value;
  });
  return found;
}

/** The whole episode: its values in the table, those in its block, and its turns. */
async function load(episode) {
  const number = blockOf(episode);
  const { texts, episodes } = await block(number);
  const [facts, turns] = episodes[episode - index.blocks[number]];
  return {
    ...named(index.episode_fields, facts, texts),
    number: episode,
    run: index.runs[columns.run[episode]].name,
    player: word("player", episode),
    env: word("env", episode),
    level: word("level", episode),
    outcome: word("outcome", episode),
    task: columns.task[episode],
    total: columns.total_return[episode],
    turns: turns.map((turn) => named(index.turn_fields, turn, texts)),
  };
}

const word = (column, episode) => index.texts[columns[column][episode]];

// ------------------------------------------------------------------------------------------------------ text and elements

// Control characters, marks that reverse or hide text, and lone surrogates. Tabs and newlines are unchanged.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Surrogate}/gu;

const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

function symbol(character) {
  const code = character.codePointAt(0);
  return CONTROLS[code] ?? (code === 0x7f ? "DEL" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`);
}

/** Nodes that show `text`, with symbols for invisible characters. */
function visible(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > at) nodes.push(document.createTextNode(text.slice(at, match.index)));
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = symbol(match[0]);
    nodes.push(mark);
    at = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

/** An element; children are nodes, texts, or null for none. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    for (const node of child instanceof Node ? [child] : visible(String(child))) element.append(node);
  }
  return element;
}

/** How much of `text` is shown at once, without splitting a surrogate pair. */
function reach(text, most = LONG, mostMarks = MOST_MARKS) {
  let end = Math.min(text.length, most);
  let marks = 0;
  for (const match of text.slice(0, end).matchAll(UNSEEN)) {
    marks += 1;
    if (marks > mostMarks) {
      end = match.index;
      break;
    }
  }
  return end < text.length && text.codePointAt(end - 1) > 0xffff ? end - 1 : end;
}

/** A long text, with the rest shown on demand. */
function long(tag, text, end = reach(text)) {
  if (end === text.length) return make(tag, { class: "text" }, text);
  const element = make(tag, { class: "text" }, text.slice(0, end));
  const rest = text.length - end;
  const button = make("button", { type: "button", onclick: () => element.replaceWith(make(tag, { class: "text" }, text)) });
  button.textContent = `… ${rest.toLocaleString("en")} more characters`;
  element.append("\n", button);
  return element;
}

function line(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥"); // on one line
}

function brief(text, most = BRIEF) {
  return line(text.length > most ? `${text.slice(0, most)}…` : text);
}

function number(value) {
  if (typeof value !== "number") return "";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 0.001 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toPrecision(4);
}

function plain(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, shown.map(([name, value]) => make("div", null, make("dt", null, brief(name, NAME)), make("dd", null, typeof value === "string" ? brief(value, NAME) : value))));
}

/** An object with one line per key; lists of texts as lists, deeper values as JSON. */
function nested(value) {
  const entries = Object.entries(value);
  const rest = entries.length > MOST_KEYS ? Object.fromEntries(entries.slice(MOST_KEYS)) : null;
  return make("dl", { class: "nested" }, entries.slice(0, MOST_KEYS).map(([name, part]) => [
    make("dt", { class: "text" }, brief(name, NAME)),
    make("dd", null, isObject(part) ? nested(part) : long(typeof part === "object" ? "pre" : "div", plain(part))),
  ]), rest && [make("dt", null, "…"), make("dd", null, long("pre", plain(rest)))]);
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const section = (title, ...children) => make("section", null, make("h4", null, title), ...children);
const folded = (title, ...children) => make("details", null, make("summary", null, title), ...children);

// ------------------------------------------------------------------------------------------------------------ the table

const COLUMNS = [
  { name: "outcome", title: "End", value: (at) => word("outcome", at) },
  { name: "player", title: "Player", value: (at) => word("player", at) },
  { name: "task", title: "Task", value: (at) => columns.task[at] },
  { name: "level", title: "Level", value: (at) => word("level", at) },
  { name: "return", title: "Return", numeric: true, value: (at) => columns.total_return[at] },
  { name: "steps", title: "Turns", numeric: true, value: (at) => columns.steps[at] },
  { name: "run", title: "Run", value: (at) => index.runs[columns.run[at]].name },
];
const FILTERS = ["run", "player", "env", "level", "outcome"];
const state = { order: [], sort: null, down: false, selected: null, turn: 0, rival: null, rivalOf: null };
let shownColumns = [];
let lowered = [];
let byTask = new Map();

function fillFilters() {
  for (const name of FILTERS) {
    const select = byId(name);
    const texts = name === "run" ? index.runs.map((run) => run.name) : index.texts;
    const used = [...new Set(columns[name])];
    select.append(make("option", { value: "" }, "all"), ...used.map((value) => make("option", { value }, brief(texts[value]) || "–")));
    select.closest("label").hidden = used.length < 2;
  }
}

function filtered() {
  const wanted = FILTERS.map((name) => [columns[name], byId(name).value]).filter(([, value]) => value !== "");
  const text = byId("search").value.trim().toLowerCase();
  const found = [];
  for (let at = 0; at < columns.run.length; at += 1) {
    if (wanted.every(([column, value]) => column[at] === Number(value)) && (!text || lowered[at].includes(text))) found.push(at);
  }
  return found;
}

const collator = new Intl.Collator("en", { numeric: true });

function sorted(found) {
  const column = COLUMNS.find((one) => one.name === state.sort);
  if (!column) return found;
  const sign = state.down ? -1 : 1;
  const values = new Map(found.map((at) => [at, column.value(at)]));
  const compare = column.numeric ? (a, b) => (a ?? -Infinity) - (b ?? -Infinity) || 0 : collator.compare;
  return found.sort((a, b) => sign * compare(values.get(a), values.get(b)) || a - b);
}

function arrange() {
  state.order = sorted(filtered());
  byId("count").textContent = `${state.order.length.toLocaleString("en")} of ${columns.run.length.toLocaleString("en")} ${columns.run.length === 1 ? "episode" : "episodes"}`;
  drawRows();
}

function drawHead() {
  byId("head").replaceChildren(...shownColumns.map((column) => {
    const mine = column.name === state.sort;
    const arrow = mine ? (state.down ? " ↓" : " ↑") : "";
    const sort = () => {
      state.down = mine && !state.down;
      state.sort = mine && !state.down ? null : column.name; // up, down, as they came
      drawHead();
      byId("head").querySelector(`.column-${column.name} button`).focus();
      byId("list").scrollTop = 0;
      arrange();
    };
    const order = mine ? (state.down ? "descending" : "ascending") : null;
    const kind = `column-${column.name}${column.numeric ? " number" : ""}`;
    return make("th", { scope: "col", class: kind, "aria-sort": order }, make("button", { type: "button", onclick: sort }, column.title + arrow));
  }));
}

function space(rows) {
  const cell = make("td");
  cell.style.height = `${rows * ROW}px`;
  return make("tr", { class: "space", "aria-hidden": "true" }, cell);
}

function drawRows() {
  const list = byId("list");
  const end = Math.max(0, state.order.length * ROW - list.clientHeight); // a filter may have shortened the list above us
  const first = Math.max(0, Math.floor(Math.min(list.scrollTop, end) / ROW) - SPARE);
  const last = Math.min(state.order.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + SPARE);
  const focused = document.activeElement?.closest?.("#rows tr")?.dataset.episode;
  const rows = state.order.slice(first, last).map((at, offset) => row(at, first + offset));
  byId("rows").replaceChildren(space(first), ...rows, space(Math.max(0, state.order.length - last)));
  list.querySelector("table").setAttribute("aria-rowcount", String(state.order.length + 1));
  if (focused !== undefined) byId("rows").querySelector(`tr[data-episode="${focused}"] button`)?.focus({ preventScroll: true });
}

function row(at, place) {
  const cells = shownColumns.map((column) => {
    const value = column.value(at);
    const kind = `column-${column.name}${column.numeric ? " number" : ""}`;
    if (column.numeric) return make("td", { class: kind }, number(value));
    const text = brief(value) || "–";
    if (column.name === "outcome") {
      return make("td", { class: kind, title: value }, make("span", { class: value }, MARKS[value], make("span", { class: "unseen" }, value)));
    }
    if (column.name !== "task") return make("td", { class: kind, title: text }, text);
    return make("td", { class: kind, title: text }, make("button", { type: "button", "aria-current": at === state.selected ? "true" : null }, text));
  });
  return make("tr", { "data-episode": at, "data-current": at === state.selected, "aria-rowindex": place + 2 }, cells);
}

/** Scroll the selected row into view. */
function reveal() {
  const list = byId("list");
  const top = state.order.indexOf(state.selected) * ROW;
  if (top < 0) return;
  const seen = list.clientHeight - 3 * ROW; // the head and the count cover some
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top > list.scrollTop + seen) list.scrollTop = top - seen;
}

// ---------------------------------------------------------------------------------------------------------- the episodes

let drawing = 0;
let placed = null; // the conversations and the page of them that are on the screen

function select(at) {
  if (at !== state.selected) state.turn = 0;
  state.selected = at;
  const rivals = rivalsOf(at);
  state.rival = state.rivalOf && (rivals.find((one) => sameSide(one, state.rivalOf)) ?? null);
  reveal();
  drawRows();
  drawDetail();
}

const sideOf = (at) => ({ run: columns.run[at], player: columns.player[at], level: columns.level[at] });
const sameSide = (at, side) => columns.run[at] === side.run && columns.player[at] === side.player && columns.level[at] === side.level;
const taskKey = (at) => `${columns.env[at]} ${columns.task[at]}`;
const rivalsOf = (at) => (byTask.get(taskKey(at)) ?? []).filter((other) => other !== at).slice(0, MOST_RIVALS);

function compareWith(rival) {
  state.rival = rival;
  state.rivalOf = rival === null ? null : sideOf(rival);
  drawDetail();
}

async function drawDetail() {
  const mine = (drawing += 1);
  if (state.selected === null) {
    drawOverview();
    return;
  }
  const numbers = state.rival === null ? [state.selected] : [state.selected, state.rival];
  let episodes;
  try {
    episodes = await Promise.all(numbers.map(load));
  } catch (error) {
    fail(error);
    return;
  }
  if (mine !== drawing) return; // another one was chosen meanwhile
  const most = Math.max(...episodes.map((episode) => episode.turns.length));
  state.turn = Math.max(0, Math.min(state.turn, most - 1));
  remember();
  const focused = document.activeElement?.dataset?.focus;
  const place = episodes.every(isConversation) ? `${numbers} ${pageOf(state.turn)}` : null;
  if (place !== null && place === placed) byId("detail").firstElementChild.replaceWith(bar(most));
  else {
    const sides = make("div", { class: episodes.length > 1 ? "sides two" : "sides" }, episodes.map(side));
    byId("detail").replaceChildren(bar(most), sides);
    if (place !== null) byId("detail").scrollTop = 0;
  }
  if (place !== null) markTurn(place !== placed && state.turn === 0);
  placed = place;
  if (focused) byId("detail").querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  for (const chip of byId("detail").querySelectorAll(".strip [aria-current]")) {
    const strip = chip.closest(".strip");
    strip.scrollTop = Math.max(0, chip.offsetTop - strip.offsetTop - strip.clientHeight / 2);
  }
}

/** Mark the current turn of the conversations, which are not drawn again, so that what was opened stays open. */
function markTurn(still) {
  for (const chip of byId("detail").querySelectorAll(".strip button")) {
    if (chip.dataset.turn === String(state.turn)) chip.setAttribute("aria-current", "step");
    else chip.removeAttribute("aria-current");
  }
  for (const one of byId("detail").querySelectorAll(".exchange")) {
    one.toggleAttribute("data-current", one.dataset.turn === String(state.turn));
    if (!still && one.dataset.turn === String(state.turn)) one.scrollIntoView({ block: "nearest" });
  }
}

function bar(most) {
  const step = (title, by, key, label) => make("button", { type: "button", "aria-label": label, "data-focus": key, disabled: state.turn + by < 0 || state.turn + by >= most, onclick: () => turnBy(by) }, title);
  const rivals = rivalsOf(state.selected);
  const select = make("select", { id: "rival", "data-focus": "rival" }, make("option", { value: "" }, "nothing"),
    rivals.map((at) => make("option", { value: at, selected: at === state.rival }, rivalName(at))));
  select.addEventListener("change", () => compareWith(select.value === "" ? null : Number(select.value)));
  const compare = make("label", null, "Compare with ", select);
  return make("div", { class: "bar-above" },
    make("button", { type: "button", class: "narrow", onclick: () => byId("list").scrollIntoView() }, "↑ List"),
    step("← Turn", -1, "back", "Previous turn"),
    make("span", { role: "status" }, most ? `${state.turn + 1} of ${most}` : "no turns"),
    step("Turn →", 1, "on", "Next turn"),
    rivals.length ? compare : null);
}

function rivalName(at) {
  const run = index.runs.length > 1 ? ` · ${index.runs[columns.run[at]].name}` : "";
  return brief(`${word("player", at)} · ${word("level", at) || "–"}${run} · ${word("outcome", at)} · ${number(columns.total_return[at])}`);
}

function side(episode) {
  const turn = episode.turns[state.turn];
  const heading = make("h2", { class: "text" }, brief(episode.task, NAME) || "no task id");
  const how = make("span", { class: episode.outcome }, `${MARKS[episode.outcome]} ${episode.outcome}`);
  return make("article", null,
    heading,
    facts([
      ["outcome", how], ["return", number(episode.total)], ["player", episode.player], ["run", index.runs.length > 1 ? episode.run : null],
      ["environment", episode.env], ["level", episode.level], ["group", episode.group === episode.task ? null : episode.group],
      ["seed", episode.seed], ["status", episode.status], ["reason", episode.reason],
    ]),
    episode.figures ? facts(Object.entries(episode.figures).map(([name, value]) => [name.replaceAll("_", " "), plain(value)])) : null,
    episode.data === null ? null : folded("The task", isObject(episode.data) ? nested(episode.data) : long("pre", plain(episode.data))),
    strip(episode),
    isConversation(episode) ? conversation(episode, state.turn) : turn ? drawTurn(episode, turn) : make("p", { class: "faint" }, `The episode ended after turn ${episode.turns.length}.`));
}

function strip(episode) {
  const chips = episode.turns.map((turn, at) => {
    const sign = turn.reward > 0 ? "plus" : turn.reward < 0 ? "minus" : null;
    const said = brief(inShort(turn), 40);
    return make("li", null, make("button", {
      type: "button", title: turn.reward === null ? null : `reward ${number(turn.reward)}`, "data-reward": sign,
      "data-focus": `turn-${episode.number}-${at}`, "data-turn": at, "aria-current": at === state.turn ? "step" : null,
      onclick: () => goTo(at),
    }, `${at + 1} ${said}`));
  });
  return make("ol", { class: "strip", "aria-label": "Turns" }, chips, isConversation(episode) ? make("li", null, toVerdict(episode)) : null);
}

function toVerdict(episode) {
  const button = make("button", { type: "button" }, `${MARKS[episode.outcome]} Verdict`);
  button.addEventListener("click", () => {
    const verdicts = button.closest("article").querySelector(".verdict");
    verdicts.scrollIntoView({ block: "nearest" });
    verdicts.focus({ preventScroll: true });
  });
  return button;
}

/** The action, for a chip: the choice, the text, or the names of the calls. */
function inShort(turn) {
  const made = turn.calls ?? (turn.said !== null && !turn.choices ? calls(turn.said) : null);
  if (turn.messages && !made) return reasoned(turn.said ?? "").words;
  return made ? [...new Set(made.map((one) => one.name))].join(", ") + (made.length > 1 ? ` ×${made.length}` : "") : turn.said ?? "";
}

function drawTurn(episode, turn) {
  const at = episode.turns.indexOf(turn);
  const view = Object.hasOwn(VIEWS, episode.env) ? VIEWS[episode.env] : {};
  const chosen = turn.choices && turn.action !== null ? turn.choices[turn.action] : undefined;
  const untold = [...(view.tells ?? []), ...(at < episode.turns.length - 1 ? ["success"] : [])]; // it is of the end
  const info = isObject(turn.info) ? Object.entries(turn.info).filter(([name]) => !untold.includes(name)) : [];
  const numbers = facts([["reward", number(turn.reward)], ["value", number(turn.value)], ["advantage", number(turn.advantage)], ["tokens", number(turn.tokens)]]);
  return make("section", { class: "turn", "aria-label": `Turn ${at + 1}` },
    make("h3", null, `Turn ${at + 1}`),
    numbers.children.length ? numbers : null,
    turn.seen === null ? null : section("Seen", (view.seen ?? ((text) => long("pre", text)))(turn.seen, episode, at)),
    view.beside ? view.beside(episode, at) : null,
    turn.reflection === null ? null : section("Reflection", make("blockquote", null, long("div", turn.reflection))),
    turn.choices?.length ? section("Choices", choices(turn)) : null,
    turn.said !== null && turn.said !== chosen ? section("Said", said(turn)) : null,
    info.length ? section("Info", nested(Object.fromEntries(info))) : turn.info !== null && !isObject(turn.info) ? section("Info", long("pre", plain(turn.info))) : null);
}

function choices(turn) {
  const shares = turn.probabilities;
  return make("ol", { class: shares ? "choices" : "choices bare" }, turn.choices.map((choice, at) => {
    const mine = at === turn.action;
    const name = make("span", { class: "text" }, `${at} ${choice}`, mine ? [" ◀", make("span", { class: "unseen" }, "chosen")] : null);
    if (!shares) return make("li", { "aria-current": mine ? "true" : null }, name);
    const fill = make("div", { class: "fill" });
    fill.style.width = `${Math.max(0, Math.min(1, shares[at])) * 100}%`;
    const share = make("span", { class: "share" }, `${(100 * shares[at]).toFixed(1)} %`);
    return make("li", { "aria-current": mine ? "true" : null }, name, make("div", { class: "track", "aria-hidden": "true" }, fill), share);
  }));
}

// ------------------------------------------------------------------------------------------------------- calls of tools

function call(text) {
  try {
    const value = JSON.parse(text);
    const given = value.arguments ?? value.parameters;
    return typeof value.name === "string" && isObject(given) ? { name: value.name, given } : null;
  } catch {
    return null;
  }
}

/** The calls in `text` in any of the three forms (tools.py); null if there are none, or other text as well. */
function calls(text) {
  if (text.length > LONG) return null;
  const marked = [...text.matchAll(/<tool_call>([\s\S]*?)<\/tool_call>/g)];
  if (marked.length) return marked.map((match) => call(match[1])).every(Boolean) ? marked.map((match) => call(match[1])) : null;
  const found = text.split("\n").filter((one) => one.trim()).map((one) => {
    const match = /^\s*([\w.-]{1,80})\s+(\{.*\})\s*$/.exec(one);
    if (!match) return call(one.replace(/;\s*$/, ""));
    try {
      return { name: match[1], given: JSON.parse(match[2]) };
    } catch {
      return null;
    }
  });
  return found.length && found.every(Boolean) ? found : null;
}

function said(turn) {
  const made = calls(turn.said);
  if (!made) return long("pre", turn.said || "(nothing)");
  const results = Array.isArray(turn.info?.said) ? turn.info.said : [];
  return make("div", null,
    make("ol", { class: "calls" }, made.map(({ name, given }, at) => make("li", { class: "box" },
      make("strong", { class: "mono" }, name),
      nested(given),
      results[at] === undefined ? null : make("p", { class: "result text" }, `→ ${plain(results[at])}`)))),
    results.slice(made.length).map((result) => make("p", { class: "result text" }, `→ ${plain(result)}`)),
    folded("Raw text", long("pre", turn.said)));
}

// ---------------------------------------------------------------------------------------------- views of environments

const VIEWS = {
  taxi: { seen: taxi },
  memory: { seen: chunk, beside: memory, tells: ["memory", "said", "answers"] },
  auto_explore: { beside: tree },
};

/** The map, with the taxi highlighted. */
function taxi(text) {
  const lines = text.split("\n");
  const isMap = (one) => /^[.TPDOX| ]+$/.test(one) && /[.|]/.test(one);
  const first = lines.findIndex(isMap);
  if (first < 0) return long("pre", text);
  let last = first;
  while (last < lines.length && isMap(lines[last])) last += 1;
  if (last - first > MOST_LINES) return long("pre", text);
  const around = (part) => (part.join("").trim() ? make("p", { class: "text mono faint" }, part.join("\n")) : null);
  const cells = aligned(lines.slice(first, last)).flatMap((one) => [...`${one}\n`].map((cell) => {
    const kind = "TOX".includes(cell) ? "taxi" : "PD".includes(cell) ? "stand" : cell === "|" ? "wall" : null;
    return kind ? make("span", { class: kind }, cell) : document.createTextNode(cell);
  }));
  return make("div", null, around(lines.slice(0, first)), make("pre", { class: "text map" }, cells), around(lines.slice(last)));
}

/** The map's lines with space for a wall after each cell, so that columns are aligned. */
function aligned(lines) {
  const rows = lines.map((one) => one.split(" ").filter(Boolean));
  const width = (row) => row.filter((cell) => cell !== "|").length;
  if (rows.some((row) => width(row) !== width(rows[0]) || row.some((cell) => cell.length > 1))) return lines;
  return rows.map((row) => row.map((cell, at) => (cell === "|" ? "" : `${cell} ${row[at + 1] === "|" ? "|" : " "} `)).join("").trimEnd());
}

const HEADS = { "Semantic memory:": "semantic", "Episodic memory:": "episodic" };

/** The parts of a memory observation: {feedback, core, semantic, episodic, chunk}. */
function remembered(text) {
  const found = { feedback: [], core: "", semantic: [], episodic: [], chunk: "" };
  const lines = text.split("\n");
  let into = null;
  for (const [at, one] of lines.entries()) {
    const head = Object.keys(HEADS).find((start) => one.startsWith(start));
    if (one === "Conversation:") {
      found.chunk = lines.slice(at + 1).join("\n");
      break;
    }
    if (head) into = HEADS[head];
    else if (one.startsWith("Core memory: ") && into === null) found.core = one.slice(13);
    else if (into && one.startsWith(" ")) found[into].push(one.slice(1));
    else found.feedback.push(one);
  }
  if (found.core === "empty") found.core = "";
  return found;
}

function chunk(text) {
  const { feedback, chunk: words } = remembered(text);
  return make("div", null, feedback.some((one) => one.trim()) ? long("p", feedback.join("\n")) : null, words ? long("pre", words) : null);
}

/** The memory before and after the turn, as shown to the player; after the last turn, all of it. */
function memory(episode, at) {
  const turn = episode.turns[at];
  if (turn.seen === null) return null;
  const before = remembered(turn.seen);
  const following = episode.turns[at + 1]?.seen;
  const held = turn.info?.memory;
  let after = null;
  if (isObject(held) && Array.isArray(held.items)) {
    const items = held.items.map((item) => (Array.isArray(item) ? item.join(" ") : plain(item)));
    after = { core: plain(held.core ?? ""), semantic: items.filter((item) => item.startsWith("s")), episodic: items.filter((item) => !item.startsWith("s")) };
  } else if (following) after = remembered(following);
  const known = new Set(episode.turns.slice(0, at + 1).flatMap((one) => {
    const { core, semantic, episodic } = remembered(one.seen ?? "");
    return [core, ...semantic, ...episodic];
  }));
  const changed = new Set((calls(turn.said ?? "") ?? []).filter((one) => one.given.memory_id).map((one) => String(one.given.memory_id)));
  const gone = (item) => changed.has(item.split(" ", 1)[0]) && !(after && [...after.semantic, ...after.episodic].includes(item));
  const isNew = (item) => !known.has(item);
  const box = (title, one, kind, marked) => make("div", { class: "box" }, make("strong", null, title), memoryPart("Core", one.core ? [one.core] : [], kind, marked),
    memoryPart("Semantic", one.semantic, kind, marked), memoryPart("Episodic", one.episodic, kind, marked));
  const pair = make("div", { class: "pair" }, box("Before", before, "removed", gone), after ? box(held ? "Complete, at the end" : "After", after, "added", isNew) : null);
  return make("div", null, section("Memory", pair), answers(episode, turn));
}

function memoryPart(title, items, kind, marked) {
  const signs = { added: "+ ", removed: "− " };
  const drawn = (item) => make("li", { class: marked(item) ? `text ${kind}` : "text" }, (marked(item) ? signs[kind] : "") + brief(item, NAME));
  const rest = items.length > MOST_KEYS ? make("li", { class: "faint" }, `and ${items.length - MOST_KEYS} more`) : null;
  return make("div", null, make("span", { class: "faint" }, title, items.length ? "" : ": empty"),
    make("ul", null, items.slice(0, MOST_KEYS).map(drawn), rest));
}

function answers(episode, turn) {
  const given = turn.info?.answers;
  const asked = episode.data?.questions;
  if (!Array.isArray(given)) return null;
  const question = (at) => (Array.isArray(asked) && isObject(asked[at]) ? asked[at] : {});
  const head = make("tr", null, ["Question", "Correct answer", "Reader's answer"].map((title) => make("th", { scope: "col" }, title)));
  const rows = given.map((answer, at) => make("tr", null, [question(at).question ?? "", question(at).answer ?? "", answer].map((cell) => make("td", null, plain(cell)))));
  return section("Answers from the memory", make("div", { class: "figures" }, make("table", null, make("thead", null, head), make("tbody", null, rows))));
}

/** The folders and files seen so far, the files that were read, and the player's position. */
function tree(episode, at) {
  const root = { name: "/", folders: new Map(), files: new Map() };
  const folder = (parts) => parts.slice(0, DEEPEST).reduce((here, name) => {
    if (!here.folders.has(name)) here.folders.set(name, { name: `${name}/`, folders: new Map(), files: new Map() });
    return here.folders.get(name);
  }, root);
  let files = 0;
  const mark = (here, name, tag) => (here.files.has(name) || (files += 1) < MOST_FILES) && here.files.set(name, new Set([...(here.files.get(name) ?? []), ...(tag ? [tag] : [])]));
  let parts = [];
  episode.turns.slice(0, at + 1).forEach((turn, number) => {
    const place = /^Folder: \/(.*)$/m.exec(turn.seen ?? "");
    if (place) parts = place[1].split("/").filter(Boolean);
    const here = folder(parts);
    const listing = /^Files: (.*)$/m.exec(turn.seen ?? "")?.[1] ?? "none";
    for (const name of listing === "none" ? [] : listing.split(", ", MOST_FILES)) {
      if (name.endsWith("/")) folder([...parts, name.slice(0, -1)]);
      else if (!/^and \d+ more$/.test(name)) mark(here, name);
    }
    const [command, name] = (turn.said ?? "").split(/ (.*)/s, 2);
    if (command === "cat" && name) mark(here, name, number < at ? "read" : "reads now");
    if (command === "id" && name) mark(here, name, "named");
    if (command === "cd" && name && number < at) parts = name === ".." ? parts.slice(0, -1) : [...parts, name];
  });
  const current = folder(parts);
  const target = typeof episode.data?.filename === "string" ? episode.data.filename : null;
  const draw = (one, path) => make("li", { class: one === current ? "here" : null }, make("span", { class: "label text" }, one.name), one === current ? make("span", { class: "tag" }, "here") : null,
    make("ul", null,
      [...one.folders].map(([name, inner]) => draw(inner, `${path}${name}/`)),
      [...one.files].map(([name, tags]) => make("li", { class: "text" }, name, [...tags].map((tag) => make("span", { class: "tag" }, tag)),
        path + name === target ? make("span", { class: "tag target" }, "target") : null))));
  return section("Files seen so far", make("ul", { class: "tree box mono" }, draw(root, "")));
}

// -------------------------------------------------------------------------------------------------------------- the runs

const FIGURES = { name: "player", env: "env", level: "level", success: "success", low: "95 % interval", tasks: "tasks", episodes: "episodes", return: "return", steps: "turns", aborted: "aborted" };
const WORDS = ["name", "env", "level"];
const percent = (share) => (typeof share === "number" ? (100 * share).toFixed(1) : plain(share ?? ""));

function figure(name, row) {
  if ((row[name] ?? null) === null) return ""; // success that the environment does not report
  if (name === "success") return `${percent(row.success)} %`;
  return name === "low" ? `${percent(row.low)} to ${percent(row.high)} %` : plain(row[name] ?? "");
}

function drawOverview() {
  remember();
  placed = null;
  byId("detail").replaceChildren(make("h2", null, index.runs.length === 1 ? "The run" : `${index.runs.length} runs`), ...index.runs.map((run) => {
    const rows = run.rows.filter(isObject);
    const used = Object.keys(FIGURES).filter((name) => rows.some((one) => (one[name] ?? null) !== null && (name !== "aborted" || one[name])));
    const kind = (name) => (WORDS.includes(name) ? null : "number");
    const table = make("table", null,
      make("thead", null, make("tr", null, used.map((name) => make("th", { scope: "col", class: kind(name) }, FIGURES[name])))),
      make("tbody", null, rows.map((one) => make("tr", null, used.map((name) => make("td", { class: kind(name) }, figure(name, one)))))));
    const settings = Object.keys(run.settings).length ? folded("Settings", nested(run.settings)) : null;
    return make("section", { class: "run" }, make("h3", null, run.name), make("p", { class: "text faint mono" }, run.path), rows.length ? make("div", { class: "figures" }, table) : null, settings);
  }), make("p", { class: "faint" }, "Choose an episode, or press j. Press ? to list all keys."));
}

// ----------------------------------------------------------------------------------------------- keys, theme, the address

function turnBy(by) {
  goTo(state.turn + by);
}

function goTo(turn) {
  state.turn = turn;
  drawDetail();
}

function episodeBy(by) {
  const place = state.order.indexOf(state.selected);
  const next = place < 0 ? (by > 0 ? 0 : state.order.length - 1) : place + by;
  if (next >= 0 && next < state.order.length) select(state.order[next]);
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("reflectkit-theme", document.documentElement.dataset.theme);
  } catch {
    // a page opened from disk may have no storage; the theme then lasts as long as the page
  }
}

function overview() {
  state.selected = null;
  drawRows();
  drawDetail();
}

function toggleRival() {
  if (state.selected === null) return;
  if (state.rival !== null) compareWith(null);
  else if (rivalsOf(state.selected).length) {
    const [first] = rivalsOf(state.selected);
    compareWith(rivalsOf(state.selected).find((at) => columns.player[at] !== columns.player[state.selected]) ?? first);
  }
}

const KEYS = {
  j: () => episodeBy(1),
  k: () => episodeBy(-1),
  ArrowRight: () => turnBy(1),
  ArrowLeft: () => turnBy(-1),
  c: toggleRival,
  r: overview,
  t: toggleTheme,
  "/": () => byId("search").focus(),
  "?": () => byId("keys").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!Object.hasOwn(KEYS, event.key) || (event.key.startsWith("Arrow") && state.selected === null)) return;
  event.preventDefault();
  KEYS[event.key]();
}

/** The address names the episode, the turn and the compared episode, so that it can be shared. */
function remember() {
  const parts = state.selected === null ? [] : [`episode=${state.selected}`, `turn=${state.turn + 1}`, ...(state.rival === null ? [] : [`beside=${state.rival}`])];
  try {
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : "#");
  } catch {
    // some browsers do not let a page opened from disk change its address
  }
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  const whole = (name) => (/^\d{1,9}$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  const at = whole("episode");
  if (at === null || at >= columns.run.length) return drawDetail();
  const rival = whole("beside");
  state.selected = at;
  state.turn = (whole("turn") ?? 1) - 1;
  state.rival = rivalsOf(at).includes(rival) ? rival : null;
  state.rivalOf = state.rival === null ? null : sideOf(rival);
  reveal();
  drawRows();
  return drawDetail();
}

function fail(error) {
  byId("detail").replaceChildren(make("p", null, `This page cannot be shown: ${error.message}. Create it again with \`reflectkit view\`, or try a newer browser.`));
}

async function start() {
  try {
    const theme = localStorage.getItem("reflectkit-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // without storage, there is no choice to restore
  }
  index = await unpack("index");
  columns = index.columns;
  lowered = columns.task.map((task) => task.toLowerCase());
  byTask = new Map();
  columns.task.forEach((_, at) => {
    const others = byTask.get(taskKey(at));
    if (others) others.push(at);
    else byTask.set(taskKey(at), [at]);
  });
  shownColumns = COLUMNS.filter((column) => column.name !== "run" || index.runs.length > 1);
  fillFilters();
  drawHead();
  arrange();
  byId("filters").addEventListener("input", arrange);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("list").addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  addEventListener("resize", () => requestAnimationFrame(drawRows));
  byId("rows").addEventListener("click", (event) => {
    const chosen = event.target.closest("tr[data-episode]");
    if (!chosen) return;
    select(Number(chosen.dataset.episode));
    if (byId("detail").getBoundingClientRect().top > innerHeight / 2) byId("detail").scrollIntoView();
  });
  byId("overview").addEventListener("click", overview);
  byId("theme").addEventListener("click", toggleTheme);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  addEventListener("hashchange", recall);
  document.addEventListener("keydown", onKey);
  await recall();
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since the page was asked for
}

start().catch(fail);
