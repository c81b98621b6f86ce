"use strict";
// A conversation: the user on the left, the agent on the right with its calls folded, what the agent read beside it, and
// the verdict at the end. Uses the functions of view.js, which follows.

const TURNS_AT_ONCE = 40; // turns that are drawn; the others are on further pages
const MOST_MESSAGES = 50; // messages of one turn that are drawn
const MOST_WORDS = 4000; // characters of a message shown at once
const ROOM = { characters: 250_000, marks: 4000 }; // for all turns that are drawn, and again for the verdict
const VERDICT = ["figures", "success", "changes", "expected", "untold", "refused"]; // parts of the info with a place of their own

const isConversation = (episode) => episode.turns.some((turn) => turn.messages) || Boolean(episode.ending?.length);
const pageOf = (turn) => Math.floor(turn / TURNS_AT_ONCE);

/** A text with as much of it as there is room for; the rest is shown on demand. */
function fit(tag, text, room) {
  const end = reach(text, Math.min(MOST_WORDS, room.characters), room.marks);
  room.characters -= end;
  room.marks -= (text.slice(0, end).match(UNSEEN) ?? []).length;
  return long(tag, text, end);
}

/** JSON on several lines; any other text as it is. */
function pretty(text) {
  if (text.length > LONG) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** The reasoning in what an agent wrote, and its other words; reasoning may lack its first or its last mark. */
function reasoned(text) {
  const thoughts = [];
  let words = "";
  let at = 0;
  for (;;) {
    const start = text.indexOf(OPEN, at);
    const end = start < 0 ? -1 : text.indexOf(CLOSE, start);
    if (end < 0) break;
    thoughts.push(text.slice(start + OPEN.length, end).trim());
    words += text.slice(at, start);
    at = end + CLOSE.length;
  }
  words += text.slice(at);
  const close = words.lastIndexOf(CLOSE);
  if (close >= 0) thoughts.push(words.slice(0, close).trim());
  words = close < 0 ? words : words.slice(close + CLOSE.length);
  const open = words.indexOf(OPEN);
  if (open >= 0) thoughts.push(words.slice(open + OPEN.length).trim());
  return { thoughts: thoughts.filter(Boolean).join("\n\n"), words: (open < 0 ? words : words.slice(0, open)).trim() };
}

/** The messages between a turn and the next one, or the end. */
const following = (episode, at) => {
  const next = episode.turns[at + 1];
  return next ? (next.anew ? [] : next.messages ?? []) : episode.ending ?? [];
};

/** What the tools answered to a turn. */
function resultsOf(episode, at) {
  const messages = following(episode, at);
  const end = messages.findIndex((one) => one.role !== "tool");
  return end < 0 ? messages : messages.slice(0, end);
}

/** The messages of a turn without the results of the calls before it, and without the policy. */
function incoming(episode, at) {
  const messages = episode.turns[at].messages ?? [];
  return at ? messages.slice(resultsOf(episode, at - 1).length) : messages.filter((one) => one.role !== "system");
}

function conversation(episode, turn) {
  const first = pageOf(Math.min(turn, Math.max(0, episode.turns.length - 1))) * TURNS_AT_ONCE;
  const last = Math.min(first + TURNS_AT_ONCE, episode.turns.length);
  const room = { ...ROOM };
  const policy = (episode.turns[0]?.messages ?? []).filter((one) => one.role === "system");
  const closing = last === episode.turns.length ? messages(following(episode, last - 1).slice(resultsOf(episode, last - 1).length), room) : [];
  return make("div", { class: episode.turns.some((one) => one.reflection !== null) ? "conversation commented" : "conversation" },
    policy.length ? folded("Policy", policy.map((one) => fit("pre", one.content, room))) : null,
    make("h3", null, "Conversation"),
    pager(episode, first, last),
    episode.turns.slice(first, last).map((_, offset) => exchange(episode, first + offset, room)),
    closing.length ? make("section", { class: "exchange", "aria-label": "The end" }, closing) : null,
    last - first > 5 ? pager(episode, first, last) : null,
    verdict(episode, { ...ROOM }));
}

function pager(episode, first, last) {
  const count = episode.turns.length;
  if (count <= TURNS_AT_ONCE) return null;
  const to = (title, turn) => make("button", { type: "button", disabled: turn < 0 || turn >= count, onclick: () => goTo(turn) }, title);
  return make("nav", { class: "pager", "aria-label": "Turns" }, to("← Earlier", first - TURNS_AT_ONCE),
    make("span", null, `Turns ${first + 1} to ${last} of ${count}`), to("Later →", first + TURNS_AT_ONCE));
}

/** A turn: what the agent read since its last one, the reflection beside it, and what it did. */
function exchange(episode, at, room) {
  const turn = episode.turns[at];
  const rest = isObject(turn.info) ? Object.entries(turn.info).filter(([name]) => !VERDICT.includes(name)) : [];
  const numbers = facts([["reward", turn.reward ? number(turn.reward) : null], ["value", number(turn.value)], ["advantage", number(turn.advantage)], ["tokens", number(turn.tokens)]]);
  const read = turn.seen !== null ? fit("pre", turn.seen, room) : messages(incoming(episode, at), room);
  return make("section", { class: "exchange", "data-turn": at, "aria-label": `Turn ${at + 1}` },
    make("div", { class: "exchange-head" }, make("h4", null, `Turn ${at + 1}`), numbers.children.length ? numbers : null),
    turn.tools ? folded("Tools", fit("pre", turn.tools, room)) : null,
    turn.anew ? folded("The agent read the conversation anew", read) : read,
    turn.reflection === null ? null : make("aside", { class: "comment", "aria-label": "Reflection" }, make("p", { class: "speaker" }, "Reflection"), fit("div", turn.reflection, room)),
    turn.choices?.length ? choices(turn) : null,
    acted(episode, at, room),
    rest.length ? folded("Info", fit("pre", plain(Object.fromEntries(rest)), room)) : null);
}

function messages(list, room) {
  const drawn = list.slice(0, MOST_MESSAGES).map((one) => message(one, room));
  const rest = list.slice(MOST_MESSAGES);
  if (!rest.length) return drawn;
  const more = make("button", { type: "button" });
  more.textContent = `… ${rest.length.toLocaleString("en")} more messages`;
  more.addEventListener("click", () => more.replaceWith(...[messages(rest, { ...ROOM })].flat()));
  return [...drawn, more];
}

const SPEAKERS = { user: "User", assistant: "Agent", system: "System", tool: "Tool" };

function message({ role, content, name }, room) {
  const speaker = name ? `${SPEAKERS[role]} ${name}` : SPEAKERS[role];
  return make("div", { class: `message ${role}` }, make("p", { class: "speaker text" }, brief(speaker, NAME)), fit("div", content, room));
}

/** What the agent did in a turn: a reply, or calls with their results; what was refused is marked. */
function acted(episode, at, room) {
  const turn = episode.turns[at];
  const results = resultsOf(episode, at);
  const { thoughts, words } = reasoned(turn.said ?? "");
  const named = results.filter((one) => one.name);
  const made = turn.calls ?? (named.length ? calls(words) : null) ?? [];
  const paired = made.length === named.length;
  const refused = Number(turn.info?.refused) > 0;
  const written = thoughts || (made.length && !calls(words)) ? folded("As written", fit("pre", turn.said ?? "", room)) : null;
  return make("div", { class: "message assistant" },
    make("p", { class: "speaker" }, "Agent"),
    thoughts ? folded("Reasoning", fit("div", thoughts, room)) : null,
    made.length ? null : words ? fit("div", words, room) : make("p", { class: "faint" }, turn.choices?.length ? "" : "(no words)"),
    made.slice(0, MOST_MESSAGES).map((one, place) => callBox(one, paired ? named[place] : null, refused, room)),
    made.length > MOST_MESSAGES ? make("p", { class: "faint" }, `and ${made.length - MOST_MESSAGES} more calls`) : null,
    results.filter((one) => !(paired && one.name)).slice(0, MOST_MESSAGES).map((one) => make("div", { class: "refusal" }, mark(one.name ? "result" : "refused"), fit("span", one.content, room))),
    written);
}

const mark = (word) => make("span", { class: word === "result" ? "tag" : "tag bad" }, word === "result" ? word : `✗ ${word}`);

function callBox({ name, given }, result, refused, room) {
  const failed = refused ? "refused" : result && /^\s*(\{\s*"error"|error\b)/i.test(result.content) ? "error" : null;
  const short = Object.values(given).slice(0, 5).map((value) => brief(typeof value === "string" ? value : JSON.stringify(value), 40)).join(", ");
  return make("details", { class: "call" },
    make("summary", null, make("span", { class: "text mono" }, brief(name, BRIEF)), " ", make("span", { class: "text faint" }, brief(short, 80)), " ", failed ? mark(failed) : null),
    make("p", { class: "speaker" }, "Arguments"), fit("pre", pretty(plain(given)), room),
    result ? [make("p", { class: "speaker" }, "Result"), fit("pre", pretty(result.content), room)] : null);
}

// ----------------------------------------------------------------------------------------------------------- the verdict

/** Why the episode failed, how the records differ, and what the user was not told. */
function verdict(episode, room) {
  const info = episode.turns.findLast((turn) => isObject(turn.info?.figures))?.info ?? {};
  const reasons = Object.entries(isObject(info.figures) ? info.figures : {}).filter(([, value]) => value);
  const untold = Array.isArray(info.untold) ? info.untold : [];
  const title = make("p", { class: episode.outcome }, `${MARKS[episode.outcome]} ${episode.outcome}`, episode.reason ? `: ${brief(episode.reason, NAME)}` : "");
  return make("section", { class: "verdict", "aria-label": "Verdict", tabindex: "-1" },
    make("h3", null, "Verdict"), title,
    reasons.length ? section(episode.outcome === "success" ? "Figures" : "Reasons", listed(reasons.map(([name, value]) => name.replaceAll("_", " ") + (value === 1 ? "" : `: ${plain(value)}`)), room)) : null,
    Array.isArray(info.changes) || Array.isArray(info.expected) ? section("Changes of the records", differences(info.changes, info.expected, room)) : null,
    untold.length ? section("Not told to the user", listed(untold.map(plain), room)) : null);
}

function listed(texts, room) {
  const rest = texts.length > MOST_KEYS ? make("li", { class: "faint" }, `and ${texts.length - MOST_KEYS} more`) : null;
  return make("ul", { class: "reasons" }, texts.slice(0, MOST_KEYS).map((text) => make("li", null, fit("span", text, room))), rest);
}

const sameJson = (one, other) => JSON.stringify(ordered(one)) === JSON.stringify(ordered(other));

/** `value` with the keys of its objects in order. */
function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  return isObject(value) ? Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, part]) => [name, ordered(part)]) : value;
}

/** A row for each field that was changed, or was to be. */
function differences(changes, expected, room) {
  const rows = new Map();
  const enter = (list, name) => (Array.isArray(list) ? list : []).filter(isObject).forEach((one) => {
    const key = JSON.stringify([one.record, one.field]);
    rows.set(key, { ...rows.get(key), [name]: one });
  });
  enter(expected, "right");
  enter(changes, "made");
  if (!rows.size) return make("p", { class: "faint" }, "None was made, and none was needed.");
  const cell = (one, name) => make("td", null, one && one[name] !== undefined ? fit("span", typeof one[name] === "string" ? one[name] : JSON.stringify(one[name]), room) : make("span", { class: "faint" }, "–"));
  const drawn = [...rows.values()].slice(0, MOST_KEYS).map(({ right, made }) => {
    const judged = !made ? "missing" : !right ? "forbidden" : sameJson(made.after, right.after) ? "right" : "wrong";
    return make("tr", null, make("td", { class: judged === "right" ? "success" : "failure" }, `${judged === "right" ? "✓" : "✗"} ${judged}`),
      cell(made ?? right, "record"), cell(made ?? right, "field"), cell(made ?? right, "before"), cell(made, "after"), cell(right, "after"));
  });
  const head = ["", "Record", "Field", "Before", "After", "Should be"].map((title) => make("th", { scope: "col" }, title || make("span", { class: "unseen" }, "Judgement")));
  return make("div", { class: "figures", tabindex: "0", role: "region", "aria-label": "Changes of the records" },
    make("table", null, make("thead", null, make("tr", null, head)), make("tbody", null, drawn)),
    rows.size > MOST_KEYS ? make("p", { class: "faint" }, `and ${rows.size - MOST_KEYS} more`) : null);
}
