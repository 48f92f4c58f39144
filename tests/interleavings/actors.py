"""Actors that do one after another what they do at once: each is a thread, and one of them has the baton.

An actor passes the baton on before and after each of its durable effects and before each of its reads. There it may
also be killed: it does nothing more then, as a process that is gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dagster_ips.exactly_once import effects


class KilledError(BaseException):
    """Ends an actor. No code that handles errors handles it, and what cleans up all the same gets it again."""


@dataclass(eq=False)
class Actor:
    """Does ``work`` up to the next place where another one may take over, each time that it gets the baton.

    ``at`` says where it is. ``ended_by`` is what it raised.
    """

    name: str
    work: Callable[[], object]
    at: str = "its beginning"
    is_killed: bool = False
    ended_by: BaseException | None = None
    is_done: bool = False
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _thread: threading.Thread | None = None

    def go_on(self) -> None:
        """Let it work until it passes the baton on, or ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self.is_done:
            self._thread.join()

    def kill(self) -> None:
        """End it where it is."""
        self.is_killed = True
        if self._thread is None:
            self.is_done, self.ended_by = True, KilledError()
        while not self.is_done:
            self.go_on()

    def pass_on(self, at: str) -> None:
        """Called in its thread where another actor may take over."""
        if self.is_killed:
            raise KilledError
        self.at = at
        self._back.release()
        self._go.acquire()
        if self.is_killed:
            raise KilledError

    def _live(self) -> None:
        self._go.acquire()
        _HERE.actor = self
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  # the one who has the baton raises it
            self.ended_by = error
        finally:
            self.is_done = True
            self._back.release()


class _Here(threading.local):
    actor: Actor | None = None


_HERE = _Here()


def pass_on(at: str) -> None:
    """Pass the baton on if this is an actor's thread."""
    if (actor := _HERE.actor) is not None:
        actor.pass_on(at)


@contextlib.contextmanager
def switched_at_effects() -> Iterator[None]:
    """Actors pass the baton on before and after each durable effect."""

    def observer(effect: effects.Effect, when: str) -> None:
        pass_on(f"{when} {effect}")

    effects.observers.append(observer)
    try:
        yield
    finally:
        effects.observers.remove(observer)
