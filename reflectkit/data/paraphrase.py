"""Says the oracle's facts in other words: synonyms for the words that they use, and questions that ask for purpose,
consequence and place, so that fewer files are found by the words of the question alone.

A group of synonyms is one meaning here. Two facts with the same meanings count as the same fact, so a paraphrased
question still applies to one file only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping

from reflectkit.core.text import keywords, stem
from reflectkit.data.wording import deed, is_plural, past, shape_of

NOUNS = """
fee charge dues, price cost tariff, customer client buyer, member subscriber, guest visitor, person individual, people
persons, worker employee, staff personnel, supplier vendor, owner holder, teacher instructor, doctor physician,
patient case, child kid, boat vessel, ship vessel, van lorry, bike bicycle cycle, car automobile, road street, house
building, room chamber, shop store, office bureau, station stop, harbour port, counter till, desk table, shelf rack,
crate box, parcel package, bag sack, paper sheet, letter note, message notification, reminder nudge, warning alert,
alarm siren, error mistake fault, failure breakdown, problem issue trouble, reason cause, rule regulation, limit
maximum cap, minimum floor, threshold bound, target goal aim, timetable schedule, appointment booking slot,
reservation booking, order purchase, delivery shipment, sale transaction, payment settlement, refund reimbursement,
discount reduction rebate, coupon voucher, ticket pass, invoice bill, receipt slip, tax levy, loan lending, fine
penalty, share portion fraction, part piece portion, total sum, amount quantity, average mean, length extent, height
elevation, width breadth, weight mass, size dimension, distance span, speed velocity, rain precipitation, wind breeze,
humidity dampness, clock timer, end finish, interval gap, period span, version release, change modification, update
revision, setting option, name title, label tag, group set, table grid, column field, record entry, file document,
folder directory, report summary, word term, sentence phrase, language tongue, picture image, colour shade, test
trial, sample specimen, measurement reading, sensor probe, meter gauge, machine device, computer machine, battery
cell, lamp light, window pane, door entrance, wall partition, garden plot, seed kernel, harvest yield, water liquid,
tank reservoir, pump compressor, leak seepage, oven furnace, bread loaf, concert performance, singer vocalist, choir
ensemble, player participant, game match, board committee, club society, meeting gathering, vote ballot, decision
ruling, proposal suggestion, question query, answer reply, complaint grievance, duty obligation, responsibility duty,
permission authorisation, password passphrase, user operator, server host, network connection, request inquiry,
response reply, queue waiting-line, memory storage, disk drive, function routine, command instruction, step stage,
loop cycle, program application, package bundle, library archive, tool utility, script program
"""
ADJECTIVES = """
first initial, last final, next following, new fresh, old former, late overdue, early premature, free complimentary,
full complete, empty vacant, big large, small little, long lengthy, short brief, high tall, low shallow, best finest,
bad poor, good decent, fast quick, slow sluggish, cheap inexpensive, expensive costly, valid acceptable, invalid
unacceptable, missing absent, lost mislaid, damaged broken, broken damaged, closed shut, open unlocked, extra
additional, spare reserve, whole entire, single lone, equal identical, different other, available obtainable, allowed
permitted, forbidden prohibited, required mandatory, known familiar, unknown unidentified, safe secure, dangerous
hazardous, twelve dozen, always at-all-times, again once-more
"""
VERBS = """
add append, adjust tune, allow permit, apply use, assign allocate, begin start, build construct, buy purchase,
calculate work-out, call invoke, cancel call-off, change alter, check verify, choose pick, clean tidy, close shut,
collect gather, combine join, compare contrast, compute work-out, convert turn, count tally, create make, cut trim,
decide determine, delete remove, describe explain, detect notice, divide split, draw plot, drop discard, enable
switch-on, disable switch-off, ensure guarantee, estimate guess, export write-out, extract pull-out, fetch retrieve,
fill top-up, filter sift, find locate, fix repair, format lay-out, generate produce, get obtain, give hand-over, group
bundle, handle deal-with, hide conceal, hold keep, import read-in, increase raise, insert put-in, keep retain, limit
restrict, list enumerate, load read-in, look search, make produce, manage look-after, measure gauge, merge unite, move
shift, notify inform, open unlock, parse interpret, pay settle, prepare ready, print output, protect guard, read
take-in, receive get, record note-down, reduce lower, refuse reject, register enrol, reject turn-down, remove delete,
render draw, replace swap, report announce, request ask-for, return give-back, round approximate, run execute, save
store, search look, select pick, send dispatch, serve offer, share split, show display, split divide, start launch,
stop halt, strip remove, sum add-up, take accept, tell inform, test try-out, track follow, transform convert, use
employ, validate check, wait hold-on, walk traverse, warn alert, wrap enclose
"""
"""Groups of synonyms; a hyphen is a space."""

WORDINGS: Mapping[str, tuple[str, ...]] = {
    "order": (
        "What do we have in order to {fact}?",  # purpose
        "If we no longer had to {fact}, which file could go?",  # consequence
        "Whose job in the project is it to {fact}?",  # place
    ),
    "deed": ("Which part of the project {fact}?", "Without which file would nothing there be that {fact}?"),
    "past": ("Which part of the project is {fact}?",),
    "sentence": (
        "On what grounds do we assume that {fact}?",
        "What would we rewrite if it no longer held that {fact}?",
    ),
    "question": ("Who would like to know {fact}, and where is it settled?", "Where is it settled {fact}?"),
    "thing": (
        "Who has to do with {fact}, and what tells them about it?",
        "If something were wrong with {fact}, where would we look?",
        "What is there for {fact}?",
    ),
    "name": ("What do we need {fact} for, and where does it live?", "If {fact} went wrong, where would we look?"),
    "setting": (
        "If we wanted another {fact}, what would we edit?",
        "What decides about {fact}?",
        "Where would a wrong {fact} come from?",
    ),
    "switch": ("Whether we {fact}: where is that decided?", "What would we edit so that we no longer {fact}?"),
    "columns": ("Which figures would tell us about {fact}?", "To relate {fact} to each other, what would we open?"),
    "row": ("Where would we look up {fact}?", "Which list would we have to correct if {fact} changed?"),
}


def reworded(kind: str, fact: str, chance: random.Random) -> str:
    """A question that is answered by the file which says `fact`, with other words. kind: as in `wording.worded`.

    >>> reworded("key", "late fee", random.Random(2))
    'If we wanted another overdue charge, what would we edit?'
    """
    if kind in ("name", "class"):
        shape = "order" if shape_of(fact) == "order" else "name"
    elif kind in ("key", "switch"):
        shape = "switch" if kind == "switch" and shape_of(fact) == "order" and " of " not in fact else "setting"
    elif kind in ("columns", "row"):
        shape = kind
    else:
        shape = "question" if fact.endswith("?") else shape_of(fact)
    text = synonyms(fact.rstrip("?"), chance, verb_first=shape in ("order", "deed", "switch"))
    return chance.choice(WORDINGS[shape]).format(fact=f"the {text}" if shape == "name" else text)


def synonyms(text: str, chance: random.Random, *, verb_first: bool) -> str:
    """`text` with other words of the same meaning and number. verb_first: the first word is a verb; no other is
    replaced as one.

    >>> synonyms("removes the late fees", random.Random(1), verb_first=True)
    'deletes the overdue dues'
    """
    parts = re.split(r"(\W+)", text)
    for index in range(0, len(parts), 2):
        is_verb = verb_first and index == 0
        other = _other(parts[index], _VERBS if is_verb else _NAMES, deed if is_verb else _plural, chance)
        if other:
            parts[index] = other
            if index > 1 and parts[index - 2].lower() in ("a", "an"):
                parts[index - 2] = "an" if other[0] in "aeiou" else "a"
    return "".join(parts)


def meaning(text: str) -> tuple[str, ...]:
    """The meanings of the keywords of `text`, sorted: each group's first word stands for the group."""
    return tuple(sorted({_MEANINGS.get(word, word) for word in keywords(text)}))


def _other(
    word: str, groups: Mapping[str, tuple[str, ...]], inflect: Callable[[str], str], chance: random.Random
) -> str:
    """A synonym of `word` in the same form; "" if none is known. Words with capitals inside a text are names."""
    if not word.islower():
        return ""
    for plain, change in ((word, str), (stem(word), inflect)):
        if plain in groups and change(plain) == word:
            first, *rest = chance.choice([other for other in groups[plain] if other != plain]).split("-")
            return " ".join([change(first), *rest])
    return ""


def _plural(noun: str) -> str:
    if is_plural(noun) or not noun[-1:].isalpha():
        return noun
    return deed(noun)


def _groups(*texts: str) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for group in _listed(texts):
        for word in group:
            groups[word] = tuple(dict.fromkeys((*groups.get(word, ()), *group)))
    return groups


def _listed(texts: Iterable[str]) -> list[list[str]]:
    return [group.split() for group in ",".join(texts).split(",")]


def _meanings(*texts: str) -> dict[str, str]:
    """The name of the meaning of each word; words that share a group, directly or through another, share it."""
    meanings: dict[str, str] = {}
    for first, *rest in _listed(texts):
        for word in rest:
            one, other = (meanings.get(stem(name), stem(name)) for name in (first, word))
            meanings = {key: one if value == other else value for key, value in meanings.items()}
            meanings |= {stem(first): one, stem(word): one}
    for word in [word for word in meanings if word in _VERBS]:
        meanings.setdefault(past(word), meanings[word])
    return meanings


_NAMES, _VERBS = _groups(NOUNS, ADJECTIVES), _groups(VERBS)
_MEANINGS = _meanings(NOUNS, ADJECTIVES, VERBS)
