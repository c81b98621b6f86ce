"""Who asks waits until nobody else is about to ask; ranks, patience, errors and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from reflectkit.eventloop import run_sync
from reflectkit.rollouts.episode import BatchBarrier, Batcher


def test_a_batch_holds_all_who_wait_in_the_order_of_their_episodes() -> None:
    batches: list[list[int]] = []

    def work(items: list[int]) -> list[int]:
        batches.append(items)
        return [10 * item for item in items]

    batcher = Batcher(work)

    async def player(table: BatchBarrier, episode: int, delay: int) -> list[int]:
        seat = table.join()
        seat.episode = episode
        for _ in range(delay):
            await asyncio.sleep(0)
        answers = [await batcher.ask(episode), await batcher.ask(episode + 100)]
        table.leave(seat)
        return answers

    async def play() -> list[list[int]]:
        table = BatchBarrier(60)
        players = [player(table, 2, 0), player(table, 1, 3), player(table, 0, 7)]
        return list(await asyncio.gather(*map(asyncio.create_task, players)))

    assert run_sync(play()) == [[20, 1020], [10, 1010], [0, 1000]]
    assert batches == [[0, 1, 2], [100, 101, 102]]


def test_the_lower_rank_serves_first_and_its_askers_join_the_others() -> None:
    """As comments and actions: two ask for a comment, one has it already."""
    order: list[tuple[str, list[int]]] = []

    def named(name: str, rank: int) -> Batcher[int, int]:
        def work(items: list[int]) -> list[int]:
            order.append((name, items))
            return items

        return Batcher(work, rank)

    comments, actions = named("comments", 0), named("actions", 1)

    async def player(table: BatchBarrier, episode: int) -> None:
        seat = table.join()
        seat.episode = episode
        if episode:
            await comments.ask(episode)
        await actions.ask(episode)
        table.leave(seat)

    async def play() -> None:
        table = BatchBarrier(60)
        await asyncio.gather(*[asyncio.create_task(player(table, episode)) for episode in range(3)])

    run_sync(play())
    assert order == [("comments", [1, 2]), ("actions", [0, 1, 2])]


def test_after_patience_those_who_wait_go_on_without_the_late_one() -> None:
    batches: list[list[int]] = []
    batcher: Batcher[int, int] = Batcher(lambda items: batches.append(items) or items)  # type: ignore[func-returns-value]

    async def play() -> None:
        table, released = BatchBarrier(0.01), asyncio.Event()

        async def player(episode: int) -> None:
            seat = table.join()
            seat.episode = episode
            if episode == 1:
                await released.wait()
            for _ in range(3):
                await batcher.ask(episode)
            if episode == 0:
                released.set()
            table.leave(seat)

        await asyncio.gather(*[asyncio.create_task(player(episode)) for episode in range(2)])
        table.close()

    run_sync(play())
    assert batches == [[0], [0], [0], [1], [1], [1]]  # nobody waited for 1, and it for nobody


def test_two_tables_that_share_batchers_do_not_hold_each_other_up() -> None:
    """As play and validation in one loop: the first serves the second's comments, whose player then wants an action."""
    comments: Batcher[int, int] = Batcher(lambda items: items, 0)
    actions: Batcher[int, int] = Batcher(lambda items: items, 1)

    async def play() -> list[int]:
        one, other = BatchBarrier(60), BatchBarrier(60)
        last = asyncio.Event()

        async def player(table: BatchBarrier, episode: int) -> int:
            seat = table.join()
            if episode == 2:
                await last.wait()
                answer = await actions.ask(episode)
            else:
                answer = await comments.ask(episode)
                last.set()
            if episode == 1:
                answer = await actions.ask(episode)
            table.leave(seat)
            return answer

        players = [asyncio.create_task(player(table, n)) for n, table in enumerate((one, other, other))]
        return list(await asyncio.wait_for(asyncio.gather(*players), 10))

    assert run_sync(play()) == [0, 1, 2]


def test_an_error_reaches_everybody_in_the_batch_and_the_next_batch_works() -> None:
    def work(items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("thirteen")
        return items

    batcher = Batcher(work)

    async def ask(*items: int) -> list[int | BaseException]:
        return await asyncio.gather(*map(batcher.ask, items), return_exceptions=True)

    assert [str(answer) for answer in run_sync(ask(1, 13))] == ["thirteen", "thirteen"]
    assert run_sync(ask(1, 2)) == [1, 2]


def test_who_was_cancelled_is_not_asked_for() -> None:
    batches: list[list[int]] = []
    batcher: Batcher[int, int] = Batcher(lambda items: batches.append(items) or items)  # type: ignore[func-returns-value]

    async def play() -> int:
        table = BatchBarrier(60)

        async def player(episode: int) -> int:
            seat = table.join()
            seat.episode = episode
            try:
                return await batcher.ask(episode)
            finally:
                table.leave(seat)

        first, second = asyncio.create_task(player(0)), asyncio.create_task(player(1))
        await asyncio.sleep(0)
        first.cancel()
        answer = await second
        with pytest.raises(asyncio.CancelledError):
            await first
        return answer

    assert run_sync(play()) == 1
    assert batches == [[1]]
