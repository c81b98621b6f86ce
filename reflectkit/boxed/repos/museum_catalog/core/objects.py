"""The object record: what the museum knows about one thing."""

from dataclasses import dataclass, field

NEW_RECORD_STATUS = "at the door"
STATUS_STEPS = ["at the door", "quarantine", "numbered", "photographed", "shelved"]
STATUS_SPECIAL = {"lent", "in treatment", "missing", "struck off"}
MISSING_BEFORE_STRIKE_YEARS = 12


@dataclass
class MuseumObject:
    """One thing, or one set that is never parted."""

    number: str
    title: str
    material: list = field(default_factory=list)
    status: str = NEW_RECORD_STATUS
    location: str = ""
    parts: int = 1
    history: list = field(default_factory=list)

    def advance(self, day):
        """Move one step on; only straight on, no step may be skipped."""
        place = STATUS_STEPS.index(self.status)
        if place + 1 == len(STATUS_STEPS):
            raise ValueError(f"{self.number} is shelved already")
        self.history.append((day, self.status))
        self.status = STATUS_STEPS[place + 1]

    def set_special(self, status, day):
        """Lend, treat, miss or strike off; only shelved things can be lent."""
        if status not in STATUS_SPECIAL:
            raise ValueError(f"unknown status {status!r}")
        if status == "lent" and self.status != "shelved":
            raise ValueError("only a shelved object can be lent")
        self.history.append((day, self.status))
        self.status = status

    def may_strike_off(self, day):
        """A missing object is struck off twelve years after it was last seen."""
        if self.status != "missing" or not self.history:
            return False
        missed = self.history[-1][0]
        return day.year - missed.year >= MISSING_BEFORE_STRIKE_YEARS

    def tags_needed(self):
        """One tag per part; sets of more than six parts get one tag and a list."""
        return 1 if self.parts > 6 else self.parts
