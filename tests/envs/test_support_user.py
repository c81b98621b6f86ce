"""The scripted user of the service desk: what it understands, what it tells and when it says yes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reflectkit.env import UserTurn
from reflectkit.envs.support.policy import UserRequest
from reflectkit.envs.support.user import Mood, Persona, UserIdentity
from reflectkit.seeding import generator

CANCELLING = UserRequest(
    "cancel",
    "I want to cancel an order.",
    {"order": "W1234", "reason": "no longer needed"},
    {"reason": "ordered by mistake"},
    told=(("28",),),
)


def persona(mood: Mood = "terse", request: UserRequest = CANCELLING, *, informed: bool = False) -> Persona:
    """informed: the agent knows who it is and all the facts."""
    anna = UserIdentity("Anna Klein", "Bern", "anna.klein11@mail.example", mood)
    user = Persona(anna, [request], generator(0, "persona"))
    if informed:
        user.identified, user.revealed = True, dict(request.facts)
    return user


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("What is your email?", "anna.klein11@mail.example"),
        ("Which order would you like to cancel?", "W1234"),
        ("Is it no longer needed or ordered by mistake?", "no longer needed"),
        ("Anything else?", "I do not understand. I want to cancel an order."),
        ("Shall I cancel it?", "You have not asked who I am."),
        ("I cannot cancel it, it is shipped.", "Bye."),
        ("Your order has been cancelled. Is there anything else I can help you with?", "Bye."),
    ],
)
def test_the_user_understands_words_that_agents_use(said: str, answer: str) -> None:
    assert persona().answer(said).text == answer


@pytest.mark.parametrize(
    "proposal",
    [
        "I'm sorry to hear that. Shall I cancel order W1234?",
        "I will cancel order W1234. OK?",
    ],
)
def test_a_proposal_is_understood_in_many_words(proposal: str) -> None:
    assert persona(request=replace(CANCELLING, revised={}), informed=True).answer(proposal) == UserTurn("Yes.")
    changed = persona(informed=True)
    assert changed.answer(proposal).text == "Wait, I have changed my mind. ordered by mistake"
    assert changed.answer(proposal) == UserTurn("Yes.")


def test_a_yes_comes_only_when_it_is_clear_to_what() -> None:
    user = persona(request=replace(CANCELLING, revised={}))
    user.identified = True
    assert user.answer("Shall I cancel order W9999?").text == "No, I mean order W1234."
    assert user.answer("Shall I cancel order W1234?").text == "no longer needed"
    assert not user.confirmed
    assert user.answer("Shall I cancel order W1234?").text == "Yes."
    assert user.confirmed
    named = persona(request=replace(CANCELLING, revised={}))
    named.identified = True
    assert named.answer("Shall I cancel order W1234, which is no longer needed?").text == "Yes."


def test_who_wavers_changes_their_mind_once() -> None:
    wavering = persona("wavering", informed=True)
    assert "changed my mind" in wavering.answer("Shall I cancel it?").text
    assert wavering.answer("Shall I cancel it, then?") == UserTurn("Yes, please.")


def test_who_pushes_insists_twice() -> None:
    pushy = persona("pushy", replace(CANCELLING, rule="shipped", revised={}))
    answers = [pushy.answer("I cannot do that: it is shipped. Anything else?") for _ in range(3)]
    assert [answer.over for answer in answers] == [False, False, True]


@pytest.mark.parametrize("said", ["Where should I send it?", "Please confirm the new address.", "What is the address?"])
def test_a_fact_that_was_not_told_is_asked_for_and_not_confirmed(said: str) -> None:
    address = "5 Elm Street, Ulm"
    moving = persona("terse", replace(CANCELLING, facts={"order": "W1234", "address": address}, revised={}))
    moving.identified = True
    assert moving.answer(said).text == address
    assert not moving.confirmed
    assert moving.answer(f"Shall I send order W1234 to the new address {address}?").text == "Yes."
