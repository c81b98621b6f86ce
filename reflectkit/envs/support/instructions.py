"""What a chat model is told that plays the user, or a person who does."""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.envs.support.persona import CHATTY, PUSHY, TERSE, WAVERING, Identity
from reflectkit.envs.support.requests import Request

MANNERS = {
    TERSE: "You write as few words as possible.",
    CHATTY: "You like to chat, and mention things that do not matter.",
    WAVERING: "When you are asked to confirm, you change your mind once, as described.",
    PUSHY: "When something is refused, you insist twice, and try to talk the agent into an exception.",
}


def instructions(identity: Identity, requests: Sequence[Request], mood: str) -> str:
    """Who the user is, what they want and what they know."""
    lines = [f"You are {identity.name} from {identity.city}, a customer of an online shop."]
    lines.append(f"Your email is {identity.email}." if identity.email else "You do not remember your email.")
    lines.append(MANNERS[mood])
    for number, request in enumerate(requests, start=1):
        facts = ", ".join(f"{name}: {value}" for name, value in request.facts.items())
        lines.append(
            f"{number}. {request.say}" + (f" What you know ({facts}) you say only when asked." if facts else "")
        )
        if request.revised:
            changed = ", ".join(f"{name}: {value}" for name, value in request.revised.items())
            lines.append(f"   Before it is done, you change your mind ({changed}).")
    lines.append("You want these things one after the other, and nothing else.")
    return "\n".join(lines)
