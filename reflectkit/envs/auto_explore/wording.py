"""Words the oracle's questions as a person would ask them, by the grammar of what a file says about itself.

A docstring may begin with a verb ("Return the fee", "Returns the fee"), be a noun ("The fee for a day") or a sentence.
Each needs its own question. Only words that `text.keywords` omits are added, so a question has exactly the
keywords of its fact.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping


def word_set(text: str) -> frozenset[str]:
    """The words of `text`, which are separated by spaces."""
    return frozenset(text.split())


VERBS = word_set(
    "accept add adjust allow append apply ask assert assign attach attempt begin benchmark bind block book bring "
    "build calculate call cancel cast change charge check choose clean clear clone close collect combine compare "
    "compute configure connect construct convert copy count create decide declare decode decorate define delete "
    "describe detect determine disable disallow discard dispatch display divide download draw drop dump emit enable "
    "encode end ensure enter escape estimate evaluate execute exit expand export extend extract fetch fill filter "
    "find finish fix flush format generate get give group handle help hide highlight hold ignore implement import "
    "improve include indicate initialize insert install interrupt invoke join keep limit link list load log look make "
    "manage map mark match measure merge modify mount move normalize notify open order override pad parse pass patch "
    "perform pick plan plot prepare prepend print process produce prompt protect provide put query raise read rebuild "
    "receive record redirect reduce refuse register reject release reload remove render reopen replace report "
    "represent request require reset resolve restart restore resume retrieve return reverse rewind run sample save "
    "scan schedule search select send separate serialize serve set share shorten show simulate skip sort split start "
    "stop store strip subtract suggest sum support swap take tell test throw toggle track transform translate trigger "
    "trim truncate try turn unpack update upgrade upload use validate verify visit wait walk warn weigh wrap write "
    "yield"
)
PAST = {
    "begin": "began", "bind": "bound", "bring": "brought", "build": "built", "choose": "chose", "draw": "drew",
    "find": "found", "get": "got", "give": "gave", "hide": "hid", "hold": "held", "keep": "kept", "make": "made",
    "put": "put", "read": "read", "rebuild": "rebuilt", "reset": "reset", "run": "ran", "send": "sent", "set": "set",
    "show": "showed", "split": "split", "take": "took", "tell": "told", "throw": "threw", "write": "wrote",
}  # fmt: skip
DOUBLED = word_set("cancel drop log map plan plot skip stop strip swap trim wrap")
FINITE = word_set(
    "are aren't can can't cannot could did do does doesn't don't had has have is isn't may might must should was were "
    "will won't would"
)
NOUN_NEXT = word_set("and of or that which who whose")
"""Words that follow a noun: the "sum" of "sum of the prices" is none of the verbs."""
CAUSES = word_set("after as at before by during for from if in on once to until when whenever where with")
"""Words that follow a participle: "raised if", unlike "requested file"."""
LINKS = word_set("as because if since that when where whether which while who whose")
ASKING = word_set("how what when where whether which who why")
HALVES = word_set("and by for from in of on or to with")
"""Words that a name such as `to_dict` or `proxy_manager_for` has something left out at."""
UNITS = word_set(
    "bytes celsius cents cm days degrees eur euros g grams hours kb kg kilos km kwh litres m mb metres minutes mm "
    "months ms pct percent points px seconds tonnes usd watts weeks years"
)

WHOLE = 5  # words of a sentence; a shorter one has no verb, as "Strict timeouts."

CODE, NOTES, TEXT = "code", "notes", "text"
"""Where a sentence is: in code, release notes, or another text."""
WORDINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    (CODE, "order"): ("Where do we {fact}?", "Where is the code to {fact}?", "Which file has the code to {fact}?"),
    (CODE, "deed"): ("What {fact}?", "Which code {fact}?"),
    (CODE, "past"): ("What is {fact}?", "Which code is {fact}?"),
    (CODE, "sentence"): ("Where in the code does it say that {fact}?",),
    (CODE, "question"): ("Where do we find out {fact}?", "Which code says {fact}?"),
    (CODE, "thing"): ("Where is the code for {fact}?", "Which file has the code for {fact}?"),
    (NOTES, "order"): ("Where is it recorded that we {past}?", "Which file says that we {past}?"),
    (NOTES, "past"): ("Where is it recorded that we {fact}?", "Which file says that we {fact}?"),
    (TEXT, "order"): ("Where does it say to {fact}?", "Which text says to {fact}?"),
    (TEXT, "deed"): ("What {fact}, and where do I read about it?",),
    (TEXT, "sentence"): ("Where does it say that {fact}?", "Which file says that {fact}?"),
    (TEXT, "question"): ("Where does it say {fact}?", "Which text says {fact}?"),
    (TEXT, "thing"): ("Where can I read about {fact}?", "Which file is about {fact}?"),
}
"""By place and shape of what is said; release notes fall back on other texts."""


def tidy(text: str) -> str:
    """`text` on one line, without the marks of Markdown and reStructuredText, and without addresses.

    >>> tidy("Returns a :class:`Session <a.Session>`, see [the docs](https://x.org) and {func}`clear` *now*.")
    'Returns a Session, see the docs and clear now'
    """
    flat = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(text.split()))
    flat = re.sub(r":[a-zA-Z]+(?::[a-zA-Z]+)*:`|\{[a-zA-Z:-]+\}`", "`", flat)
    flat = re.sub(r"`~?([^`<>]*?)\s*<[^`<>]*>`_*", r"\1", flat)
    flat = re.sub(r"(?<![\w*])\*{1,2}(\w[^*]*)\*{1,2}(?![\w*])", r"\1", flat.replace("`~", "`").replace("`", ""))
    flat = re.sub(r"\s*\((?:pull |issue )?#\d+\)|</?[a-zA-Z][^<>]*>|\s*\(?https?://\S+", "", flat, flags=re.IGNORECASE)
    return flat.strip(" .:;,*#\"'")


def spelled(name: str) -> str:
    """The words of an identifier, in lower case. Digits stay with their word.

    >>> spelled("kilosPerM2"), spelled("late_fee")
    ('kilos per m2', 'late fee')
    """
    parts = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", name)
    return " ".join(parts).lower()


def worded(kind: str, fact: str, place: str, chance: random.Random) -> str:
    """A question that is answered by the file which says `fact`.

    place: what kind of file it is: `CODE`, `NOTES` or `TEXT`. kind: what the fact is: "does" or "about" (all or part of
    a sentence), "says" (a whole sentence), "name" and "class" (of a definition), "heading", "columns", "row", "key",
    "switch" (a key that is on or off).
    """
    if kind in ("does", "about", "says"):
        return _about_sentence(fact, place, chance, whole=kind == "says")
    if kind == "heading":
        return _about_sentence(_sentence_case(fact), TEXT, chance)
    if kind in ("name", "class"):
        return _about_name(fact, kind == "class", chance)
    if kind in ("key", "switch"):
        return _about_setting(fact, kind == "switch", chance)
    if kind == "row":
        first, _, second = fact.partition(", ")
        cells = f"{first} with {second}" if second else first
        return chance.choice(("Which table lists {fact}?", "Which table has a line for {fact}?")).format(fact=cells)
    return chance.choice(("Which table lists {fact}?", "Where are {fact} recorded?")).format(fact=fact)


def shape_of(text: str, *, release_notes: bool = False) -> str:
    """The grammar of `text`: order ("return a fee"), deed ("returns a fee"), past ("raised if", in release notes also
    "added a fee"), sentence, question or thing.

    >>> [shape_of(text) for text in ("sum up the fees", "sums up the fees", "the sum of the fees", "fees are due")]
    ['order', 'deed', 'thing', 'sentence']
    """
    parts = text.lower().split()
    first, second = [*parts, ""][:2]
    if first in ASKING:
        return "question"
    if first in VERBS and second not in NOUN_NEXT:
        return "order"
    if first in _DEEDS and second not in NOUN_NEXT:
        return "deed"
    if first in _PASTS and (second in CAUSES or release_notes):
        return "past"
    for word in parts[1:]:
        if word in LINKS:
            break
        if word in FINITE:
            return "sentence"
    return "thing"


def _about_sentence(fact: str, place: str, chance: random.Random, *, whole: bool = False) -> str:
    if fact.endswith("?"):
        return f'Where can I read about "{fact}"'
    shape = shape_of(fact, release_notes=place == NOTES)
    if place == TEXT and shape == "past":
        shape = "thing"
    parts = fact.lower().split()
    if shape == "thing" and whole and place != CODE and len(parts) >= WHOLE and LINKS.isdisjoint(parts):
        shape = "sentence"
    wordings = WORDINGS.get((place, shape)) or WORDINGS[TEXT, shape]
    first, _, rest = fact.partition(" ")
    return chance.choice(wordings).format(fact=fact, past=f"{past(first.lower())} {rest}")


def _about_name(fact: str, is_class: bool, chance: random.Random) -> str:
    first, *_, last = [*fact.split(), fact.split()[-1]]
    if first in ("is", "has", "can", "should"):
        wordings: tuple[str, ...] = ("Where do we find out if it {fact}?",)
    elif first in HALVES or last in HALVES:
        wordings = ('Where is "{fact}" in the code?',)
    elif is_class:
        wordings = ("Which file defines the {fact}?", "Where do we define the {fact}?")
    elif first in VERBS:
        wordings = ("Where do we {fact}?", "Where is the code to {fact}?")
    elif is_plural(last):
        wordings = ("Where are the {fact} worked out?", "Where is the code for the {fact}?")
    else:
        wordings = ("Where is the {fact} worked out?", "Where is the code for the {fact}?")
    return chance.choice(wordings).format(fact=fact)


def _about_setting(fact: str, is_switch: bool, chance: random.Random) -> str:
    head, of, owner = fact.partition(" of ")
    *most, last = head.split()
    if is_switch and (head.split()[0] in VERBS):
        return f"Where do we set if we {head}{f' for the {owner}' if of else ''}?"
    if most and last in UNITS:
        head = f"{' '.join(most)} in {last}"
    named = f"{head} of the {owner}" if of else head
    verb = "are" if is_plural((most or [last])[-1] if " in " in head else last) else "is"
    return chance.choice(
        (f"Where {verb} the {named} set?", f"Which settings have the {named}?", f"Where do we set the {named}?")
    )


def _sentence_case(heading: str) -> str:
    """`heading` in lower case if it is in Title Case or capitals; acronyms and names with capitals inside stay."""
    if heading.isupper():
        return heading.lower()
    parts = heading.split()
    long = [part for part in parts[1:] if len(part) > 3]
    if long and all(part[:1].isupper() or not part[:1].isalpha() for part in long):
        parts = [part.lower() if re.fullmatch(r"\W*[A-Z][a-z'-]*\W*", part) else part for part in parts]
    return " ".join(parts)


def is_plural(word: str) -> bool:
    """Whether `word` looks like a plural."""
    return word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))


def deed(verb: str) -> str:
    """The third person of `verb`: "carries". Nouns get their plural so."""
    if verb.endswith("y") and verb[-2] not in "aeou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z")) else "s")


def past(verb: str) -> str:
    """The past of `verb`: "carried"."""
    if verb in PAST:
        return PAST[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeou":
        return verb[:-1] + "ied"
    return verb + (verb[-1] if verb in DOUBLED else "") + "ed"


_DEEDS = frozenset(map(deed, VERBS))
_PASTS = frozenset(map(past, VERBS)) - VERBS
