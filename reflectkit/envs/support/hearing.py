"""What the scripted user understands of an agent's words: what it is asked for, a proposal, a
refusal, a claim.

It reads key words of whole sentences, so that many ways to say a thing are one. Each function reads
the first `LONGEST_HEARD` characters.
"""

from __future__ import annotations

import re

LONGEST_HEARD = 2000
"""Characters of a reply that the user listens to."""
EMAIL_ADDRESS = re.compile(r"\be-?mail[ -]address\b")
SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?\n](?=\w)[^.!?\n]*)*[.!?\n]?")
ORDER_ID = re.compile(r"\bw\d{3,6}\b")
NUMBER = re.compile(
    r"(?:(?<![\w.,])|(?<=\beur)|(?<=\beuro)|(?<=\beuros))\d+(?:[.,]\d+)?(?:(?!\w)|(?=eur))"
)
"""An amount or a count, and no part of an id."""
WORDS = str.split("zero one two three four five six seven eight nine ten eleven twelve")
NUMBER_WORD = re.compile(
    rf"\b(?:{'|'.join(word for word in WORDS if word != 'one')})\b"
    r"|\bone(?= (?:left|in stock|available|euro|item|piece|unit|of them)\b)"
)

REQUESTING = re.compile(
    r"\?|\bplease\b(?! (?:note|be aware|remember|understand|accept))|\bkindly\b|\blet me know\b"
    r"|\b(tell|give|send|show) me\b|\bi(?:'ll| will)? (also )?need\b"
    r"|\b(may|can|could) i (have|get|know|ask|see)\b|\b(could|can|would|will) you\b|\b(provide|share|state|specify)\b"
    r"|\b(reply|say|answer|type) (with )?yes\b|\byes or no\b"
)
"""A sentence that wants an answer."""
_WHICH = r"\b(which|what|what's|whats)\b"
_GIVE = (
    r"\b(provide|give|tell|share|send|state|specify|have|know|need|confirm|verify|get|enter|with)\b"
)
ASKS = {
    "email": re.compile(r"\be-?mail\b"),
    "name": re.compile(
        r"\b(your|full|first|last) name\b|\bname and (city|town)\b|\bwho (are you|is this|am i (speaking|talking))\b"
        r"|\bwhom am i (speaking|talking)\b|\b(verify|confirm) (who you are|your identity)\b|\bidentify yourself\b"
    ),
    "order": re.compile(
        rf"\border('s)? (number|id)\b|{_WHICH} (\w+ )?orders?\b|\bnumber of (the|your|that) order\b"
        rf"|{_WHICH} (is|was) the order\b"
    ),
    "reason": re.compile(
        r"\breason\b|\bwhy\b|\bhow come\b"
        r"|\bno longer needed\b.*\bor\b.*\bmistake\b|\bmistake\b.*\bor\b.*\bno longer needed\b"
    ),
    "address": re.compile(
        rf"{_WHICH} (\w+ )?(\w+ )?address\b|{_WHICH} (is|will be|should be) [\w ]*\baddress\b"
        rf"|{_GIVE} [\w ]*\baddress\b|\baddress,? please\b|\bnew address\b|\bwhere (should|shall|do|would|to)\b"
    ),
    "item": re.compile(
        rf"{_WHICH} (\w+ )?(item|product|article|thing)s?\b|\bwhat (would you like|do you want|do you wish) to\b"
        rf"|{_GIVE} (me )?[\w ]*\b(item|product|article)\b|{_WHICH} (is|was) the (item|product|article)\b"
    ),
    "option": re.compile(
        r"\b(exchange|swap|change|replace)d? (it|this|that|the [\w ]+) (for|with)\b|"
        rf"{_WHICH} (\w+ )?(option|colou?r|size|version|variant)\b|{_WHICH}\b.*\binstead\b"
        rf"|{_GIVE} (me )?[\w ]*\b(option|colou?r|size|version|variant)\b"
    ),
    "payment": re.compile(
        rf"{_WHICH} (\w+ )?(payment|card|method)\b|\bhow (do|would) you (\w+ )*pay\b|\brefund(ed)? to\b"
        rf"|{_GIVE} (me )?[\w ]*\bpayment\b|\bhow (should|shall) [\w ]*(paid|pay|refund)"
    ),
}
"""The words of a sentence that ask for each fact."""
DOING = (
    "cancel|change|update|swap|return|exchange|send|credit|refund|move|redirect|replace|take"
    " back|proceed|continue|give"
)
CONFIRM = re.compile(
    r"\byes or no\b|\b(reply|say|answer|type) (with )?yes\b|\(yes\b|\by/n\b|\bconfirm\b|\b(shall|should) (i|we)\b"
    r"|\bdo you want me to\b|\bwould you like me to\b|\bgo ahead\b|\bproceed\b|\bdo you agree\b|\bagreed\?"
    r"|\byour (ok|okay|approval|consent)\b|\b(is|are|would|will) (that|this|it|you|all|everything) (be )?"
    r"(ok|okay|right|alright|all right|fine|correct|good)\b|\b(ok|okay|right|alright|all right|correct|fine|deal)\s*\?"
    r"|\bsound (good|right|ok|okay)\b"
    rf"|\b(may|can|could) (i|we) (now |then |please )?({DOING})\b"
    rf"|\b(do|would) you (want|wish|like) (me )?to ({DOING})\b"
)
"""A proposal that wants a yes."""
ELSE = re.compile(
    r"\b(any|some)thing (else|more)\b|\bfurther (help|questions)\b|\belse i can\b|\bmore i can do\b"
)
_NOT_FOUND = r"(?! (find|locate|see|identify|verify|look|tell|say|open|reach|access|understand))"
REFUSAL = re.compile(
    rf"\b(can ?not|can't|could not|couldn't|unable to|not able to){_NOT_FOUND}\b"
    r"|\b(not|never|isn't|aren't|no longer) (possible|allowed|eligible|permitted|entitled|covered)\b|\bimpossible\b"
    r"|\bno exceptions?\b|\b(must|have to) (refuse|decline|say no)\b|\bi (refuse|decline)\b|\bforbid(s|den)?\b"
    r"|\b(won't|will not) be able to\b|\bno right to\b|\b(outside|beyond) (of )?(the|our) [\w -]*(window|period)\b"
    rf"|\b(not|don't|doesn't|won't) (give|grant|make|offer|provide|accept|allow|issue|process|qualify|apply|{DOING})\b"
)
REGRET = re.compile(r"\bunfortunately\b|\bafraid\b|\bsorry\b|\bregret\b|\bapolog")
"""With the words of a rule, and without a question, a refusal as well."""
_PAST = r"cancell?ed|changed|swapped|returned|exchanged|credited|refunded|updated|replaced|taken back|redirected|moved"
CLAIM = re.compile(rf"\b(has|have|is|was|are|were)( now| been| already| just)* ({_PAST})\b")
"""Says in so many words that something was done."""
COMPLETION = re.compile(
    rf"\bdone\b|\b(has|have) been\b|\bis now\b|\bi have\b|\bi've\b|\bsuccessful|\bcompleted?\b|\ball set\b"
    rf"|\b({_PAST})\b"
)
"""May say so, where the records were changed, too."""
STOCK = re.compile(
    r"\bsold out\b|\bout of stock\b|\bnot (in stock|available)\b|\bunavailable\b|\bin stock\b|\bnone\b"
)
PRICE = re.compile(r"\b(cost|costs|paid|price|total|amount|euros?|eur\d*)\b|€|\deur")
YES_OR_NO = re.compile(
    r"\b(?:(?P<yes>yes|yeah|yep|ok|okay|sure|correct|right|go ahead|please do|do it|confirm|confirmed|agreed?|fine)"
    r"|no|not|don't|wait|stop|instead)\b"
)


def heard(text: str) -> str:
    """`text` as the user listens to it: its beginning, in lower case, on one line."""
    words = " ".join(text[:LONGEST_HEARD].lower().replace("’", "'").split())
    # An email address is no address
    return EMAIL_ADDRESS.sub("email", words)


def sentences(said: str) -> list[str]:
    """The sentences of what was `heard`, with the mark that ends them.

    >>> sentences("it cost 45.50 euros. anything else?")
    ['it cost 45.50 euros.', 'anything else?']
    """
    parts = [part.strip() for part in SENTENCE.findall(said)]
    return [part for part in parts if part]


def statements(said: str) -> str:
    """What was `heard`, without questions."""
    return " ".join(sentence for sentence in sentences(said) if not sentence.endswith("?"))


def numbers(said: str) -> set[float]:
    """The amounts and counts in what was `heard`, in digits or in words up to twelve; no ids.

    >>> sorted(numbers("order w1234 costs eur45.50, and two are left"))
    [2.0, 45.5]
    """
    values = {float(WORDS.index(word)) for word in NUMBER_WORD.findall(said)}
    for digits in NUMBER.findall(said):
        values.add(float(digits.replace(",", ".")))
    return values


def names(said: str, words: str) -> bool:
    """Whether `words`, in lower case, are in what was `heard`, and not inside longer words."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", said) is not None


def agrees(said: str) -> bool:
    """Whether a user's words, in lower case, agree to a proposal: by the first that says yes or no.

    >>> agrees("yes, no problem."), agrees("no, not that one."), agrees("i am not sure.")
    (True, False, False)
    """
    # "No problem" after a yes takes nothing back
    first = YES_OR_NO.search(said)
    return first is not None and first["yes"] is not None
