"""Edges between consumers and upstreams, each with its own numbered captures."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

ARROW = " ← "


@dataclass(frozen=True, slots=True)
class Edge:
    """A consumer and the upstream it reads, by their asset keys (``"a/b"``).

    A partitioned consumer has one edge per partition; an edge without ``partition`` is the line to which they belong.

    Example:
        >>> Edge("playback_daily", "playback").slug
        'playback_daily__playback'
        >>> len(Edge("playback_daily", "playback").id)
        32
    """

    consumer: str
    upstream: str
    partition: str | None = None

    @property
    def key(self) -> str:
        """The key of its partition; empty without partitions."""
        return self.partition or ""

    @property
    def line(self) -> Edge:
        """The line of all partitions of the consumer and this upstream."""
        return Edge(self.consumer, self.upstream)

    def of(self, partition: str) -> Edge:
        """One partition's edge of this line."""
        return Edge(self.consumer, self.upstream, partition)

    @property
    def id(self) -> str:
        """32 lowercase characters, the same in every process: fits any backend's key and a snapshot property's name."""
        parts = [self.consumer, self.upstream] + ([self.partition] if self.partition is not None else [])
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    @property
    def slug(self) -> str:
        """Readable and usable as a table name; different edges may share one, so names add more."""
        return f"{_slug(self.consumer)}__{_slug(self.upstream)}"

    def __str__(self) -> str:
        of = f"[{self.partition}]" if self.partition is not None else ""
        return f"{self.consumer}{of}{ARROW}{self.upstream}"


def _slug(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")[:40]
