"""Moves pointers: in the hot store first, then in the log.

A move (read, rewind or restore) changes the hot state. Then the resulting state goes to the log, and the caller is
answered when the log has it. The hot store may lose its state in between, and users may be reloaded without the move:
`Moves.finish` notices that and repeats the move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from readstate.batching import Batcher, Batchers
from readstate.domain.announcements import PointerMoved, UserRoomChanged
from readstate.domain.errors import Unavailable
from readstate.domain.events import read_event
from readstate.domain.model import DropNumber
from readstate.ports import Absent, Bus, Clock, Freshness, HotUsers, Log, Move, Moved
from readstate.ports.consistency import Consistency
from readstate.telemetry import RECEIPTS

from .loading import MAX_TRIES, Loader
from .pending_writes import PendingWrites

MAX_MOVES = 2_000
"""In a batch, unless one caller has more. Two batches are under way, so that the stores work on one of them while this
process prepares the other; if one batch took all that waits, all callers would wait for the same commit."""
Results = list[Moved | Absent]


@dataclass(eq=False, repr=False)
class ReadStateLog:
    """Appends the states that moves have led to, then announces them."""

    _log: Log
    _users: HotUsers
    _bus: Bus
    _pending_writes: PendingWrites
    _consistency: Consistency
    _clock: Clock
    _instance_id: str

    async def append(self, done: Sequence[tuple[Move, Moved]], generation: DropNumber) -> set[str]:
        """Return the users who were dropped since `generation`, which was taken before the moves."""
        now = self._clock()
        users = {moved.user_id for _, moved in done}
        try:
            with self._pending_writes.of(users):
                await self._log.reads([read_event(m.user_id, m.channel_id, m.pointer, now) for _, m in done])
                dropped = await self._users.dropped(generation, users)
        except BaseException:
            await self._consistency.take_back_reads(self._users, users)
            await self._bus.publish([UserRoomChanged(moved.user_id, moved.channel_id) for _, moved in done])
            raise
        RECEIPTS.inc(len(done))
        await self._bus.publish_reads(len(done), lambda: self._announcements(done))
        return dropped

    def _announcements(self, done: Sequence[tuple[Move, Moved]]) -> list[PointerMoved]:
        return [
            PointerMoved(m.user_id, m.channel_id, m.before, m.pointer, self._instance_id, move.origin)
            for move, m in done
            if m.changed
        ]


@dataclass(eq=False, repr=False)
class Moves:
    _users: HotUsers
    _loader: Loader
    _log: ReadStateLog
    _freshness: Freshness
    _consistency: Consistency
    _batchers: Batchers

    def __post_init__(self) -> None:
        self._batcher: Batcher[Move, Moved | Absent | None] = self._batchers(
            self._make_durable, max_items=MAX_MOVES, concurrency=2, name="moves"
        )

    async def submit(self, moves: Sequence[Move]) -> Sequence[Moved | Absent]:
        """Apply moves and return when their states are durable. Moves that arrive together share a batch.

        Moves of users who are behind, or whose part of the hot store does not answer, wait outside of a batch, and hold
        up no others.
        """
        results = await self._batcher.submit(moves)
        done = [result for result in results if result is not None]
        return done if len(done) == len(moves) else await self._submit_again(moves, list(results))

    async def _submit_again(self, moves: Sequence[Move], results: list[Moved | Absent | None]) -> Results:
        """Those without a result, until all have one."""
        while held := [index for index, result in enumerate(results) if result is None]:
            again = [moves[index] for index in held]
            users = {move.user_id for move in again}
            await self._users.generation(users)
            await self._freshness.caught_up(users)
            for index, result in zip(held, await self._batcher.submit(again), strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    async def one(self, move: Move) -> Moved:
        """`submit` for one move. Raises if the user is not a member."""
        result = (await self.submit([move]))[0]
        if result is Absent.NOT_A_MEMBER:
            raise await self._loader.no_user_room(move.user_id, move.channel_id)
        if isinstance(result, Moved):
            return result
        raise Unavailable("the user's state changed meanwhile; try again")

    async def close(self) -> None:
        await self._batcher.close()

    async def _make_durable(self, moves: Sequence[Move]) -> list[Moved | Absent | None]:
        """Moves that changed nothing are written too: the state that they found may not be durable yet.

        None: the user is behind or does not answer, and nothing was done.
        """
        users = {move.user_id for move in moves}
        generation, there = await self._users.answering(users)  # calls the hot store, so that a loss is noticed
        if len(there) == len(users) and not self._freshness.behind(users):
            return [*await self._move_in(generation, moves)]
        held = {user for user in users if user not in there or self._freshness.behind([user])}
        ready = [index for index, move in enumerate(moves) if move.user_id not in held]
        results: list[Moved | Absent | None] = [None] * len(moves)
        if ready:
            moved = await self._move_in(generation, [moves[index] for index in ready])
            for index, result in zip(ready, moved, strict=True):
                results[index] = result
        return results

    async def _move_in(self, generation: DropNumber, moves: Sequence[Move]) -> Results:
        found = await self._users.move(moves, self._consistency.generation_to_move_in(generation))
        return await self.finish(moves, found, generation)

    async def apply(self, moves: Sequence[Move]) -> tuple[DropNumber, Results]:
        """Move pointers in the hot store. Return the generation from before, and the results.

        Waits until no reads are missing: meanwhile the hot state may be in an old epoch, and a read made in it would be
        lost.
        """
        users = {move.user_id for move in moves}
        generation = await self._users.generation(users)  # calls the hot store, so that a new generation is noticed
        while self._freshness.behind(users):
            await self._freshness.caught_up(users)
            generation = await self._users.generation(users)
        return generation, await self._users.move(moves, self._consistency.generation_to_move_in(generation))

    async def finish(self, moves: Sequence[Move], results: Results, generation: DropNumber) -> Results:
        """Make the states durable that the moves have led to.

        `generation` is the one from before the first move. Users who were dropped since may have been reloaded without
        the moves, and may be in another epoch: their moves are repeated.
        """
        results = await self._load_and_move(moves, results)
        todo = [index for index, result in enumerate(results) if isinstance(result, Moved)]
        for _ in range(MAX_TRIES):
            done = [(moves[index], moved) for index in todo if isinstance(moved := results[index], Moved)]
            dropped = await self._log.append(done, generation) if done else set()
            todo = [index for index in todo if moves[index].user_id in dropped]
            if not todo:
                return results
            again = [moves[index] for index in todo]
            generation, repeated = await self.apply(again)
            repeated = await self._load_and_move(again, repeated)
            for index, second in zip(todo, repeated, strict=True):
                first = results[index]
                if isinstance(first, Moved) and isinstance(second, Moved):
                    same = first.pointer.epoch == second.pointer.epoch  # else another mark-unread came first
                    changed = second.changed or (same and first.changed)
                    results[index] = replace(second, before=first.before, changed=changed)
        raise Unavailable("the hot store loses its state repeatedly; try again")

    async def _load_and_move(self, moves: Sequence[Move], results: Results) -> Results:
        """Load the users who were not loaded, and repeat their moves."""
        for _ in range(MAX_TRIES):
            absent = [index for index, result in enumerate(results) if result is Absent.NOT_LOADED]
            if not absent:
                break
            await self._loader.load_users(moves[index].user_id for index in absent)
            _, again = await self.apply([moves[index] for index in absent])
            for index, result in zip(absent, again, strict=True):
                results[index] = result
        return results
