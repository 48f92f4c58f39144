"""Following rows through rewrites: a compaction moves rows to other files and changes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files whose rows a ``replace`` snapshot moved, and the files it moved them to, by path.

    If several rewrites were merged into one, ``between`` are the files that one of them wrote and another rewrote.
    """

    inputs: frozenset[str]
    outputs: frozenset[str]
    between: frozenset[str] = frozenset()

    @property
    def files(self) -> frozenset[str]:
        """All of its files."""
        return self.inputs | self.between | self.outputs


def merged(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """The rewrites, oldest first, with chains of them merged: from files that none wrote to the files still there.

    Example:
        >>> one, two = merged([Rewrite(frozenset("ab"), frozenset("c")), Rewrite(frozenset("cd"), frozenset("e"))]), []
        >>> [(sorted(rewrite.inputs), sorted(rewrite.outputs)) for rewrite in one]
        [(['a', 'b', 'd'], ['e'])]
    """
    groups: dict[int, Rewrite] = {}
    writers: dict[str, list[int]] = {}  # by output: the groups, including those that were merged into others since
    for number, rewrite in enumerate(rewrites):
        found = {writer for path in rewrite.inputs for writer in writers.get(path, ()) if writer in groups}
        before = [groups.pop(writer) for writer in sorted(found)]
        written = frozenset[str]().union(*[group.outputs for group in before])
        inputs = frozenset[str]().union(rewrite.inputs - written, *[group.inputs for group in before])
        between = (written & rewrite.inputs).union(*[group.between for group in before])
        groups[number] = Rewrite(inputs, (written - rewrite.inputs) | rewrite.outputs, between)
        for path in groups[number].outputs:
            writers.setdefault(path, []).append(number)
    return list(groups.values())


def without_change(
    rewrites: Sequence[Rewrite], *, added: AbstractSet[str], removed: AbstractSet[str], disturbed: AbstractSet[str]
) -> list[Rewrite]:
    """The merged ``rewrites`` that changed no row as far as the interval's ends can tell.

    ``added`` and ``removed`` are the files that are live only at the end or only at the start; ``disturbed`` are files
    to which a delete file of the interval may apply. Such a rewrite took in at least one file that was live at the
    start (one that didn't is a way to write new rows), all of its outputs are live at the end, and nothing was deleted
    on the way.
    """
    return [
        rewrite
        for rewrite in merged(rewrites)
        if rewrite.inputs & removed and rewrite.outputs <= added and not rewrite.files & disturbed
    ]
