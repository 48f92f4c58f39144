"""Shows what a command is doing while it has nothing to print yet."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

import click

_T = TypeVar("_T")


@contextlib.contextmanager
def shown_while(doing: str) -> Iterator[None]:
    """Show ``doing`` on the error stream, and remove it at the end; nothing if the stream isn't a terminal."""
    is_seen = sys.stderr.isatty()
    if is_seen:
        click.echo(f"{doing} …", nl=False, err=True)
    try:
        yield
    finally:
        if is_seen:
            click.echo("\r\033[K", nl=False, err=True)


def shown_before_each(found: Iterable[_T], doing: str) -> Iterator[_T]:
    """The items of ``found``, one by one; shows ``doing`` while waiting for the next one."""
    rest = iter(found)
    while True:
        with shown_while(doing):
            each = list(itertools.islice(rest, 1))
        if not each:
            return
        yield each[0]
