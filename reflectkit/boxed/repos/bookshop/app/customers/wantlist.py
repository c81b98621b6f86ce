"""Want lists: books that customers look for, matched against every newly shelved copy."""

import unicodedata
from dataclasses import dataclass

MAX_WANTS = 40
EXPIRE_MONTHS = 18
HEAD_START_HOURS = 36
MIN_TITLE_WORDS_MATCHING = 0.8
STOP_WORDS = {"the", "a", "an", "of", "and", "in", "on", "to"}


@dataclass(frozen=True)
class Want:
    """One wish: author and title are needed, the highest price and lowest grade may be open."""

    customer: str
    author: str
    title: str
    max_cents: int = 0
    no_ex_library: bool = False


def words(text):
    """Words of a title in lower case, without accents and without the stop words."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return {word for word in plain.lower().replace("-", " ").split() if word not in STOP_WORDS}


def matches(want, copy):
    """A copy matches if the surname agrees and four fifths of the wanted title words occur."""
    if want.author.split()[-1].lower() != copy["author"].split()[-1].lower():
        return False
    wanted = words(want.title)
    if not wanted:
        return False
    share = len(wanted & words(copy["title"])) / len(wanted)
    if share < MIN_TITLE_WORDS_MATCHING:
        return False
    if want.no_ex_library and copy.get("ex_library"):
        return False
    return not want.max_cents or copy["cents"] <= want.max_cents


def visible_on_web(hours_since_shelved, wanted_by_anyone):
    """Wanted copies stay hidden from the web page for 36 hours, so that the waiting come first."""
    return not wanted_by_anyone or hours_since_shelved >= HEAD_START_HOURS


def prune(wants_with_age):
    """Drop wishes older than eighteen months and keep the newest forty of a customer."""
    fresh = [pair for pair in wants_with_age if pair[1] <= EXPIRE_MONTHS]
    fresh.sort(key=lambda pair: pair[1])
    return [want for want, _age in fresh[:MAX_WANTS]]
