"""What a command is at, while it has nothing to print yet."""

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
    """Show ``doing`` on the terminal's error stream and take it away again; nothing where no person looks on."""
    is_seen = sys.stderr.isatty()
    if is_seen:
        click.echo(f"{doing} …", nl=False, err=True)
    try:
        yield
    finally:
        if is_seen:
            click.echo("\r\033[K", nl=False, err=True)


def shown_before_each(found: Iterable[_T], doing: str) -> Iterator[_T]:
    """What is ``found``, one after the other; while the next is looked for, ``doing`` is shown."""
    rest = iter(found)
    while True:
        with shown_while(doing):
            each = list(itertools.islice(rest, 1))
        if not each:
            return
        yield each[0]
