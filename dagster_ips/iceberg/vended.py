"""What a REST server gives its clients for the files of one table: settings, and credentials that may end soon."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

_ENDS = "-expires-at"
_RENEWED_BEFORE_END_MS = 60_000
_S3_KEY = "s3.access-key-id"
_S3_LOGIN = ("access-key-id", "secret-access-key", "session-token", "role-arn", "role-session-name", "profile-name")
_OWN_S3_LOGIN = frozenset(f"{store}.{name}" for store in ("s3", "client") for name in _S3_LOGIN)


@dataclass(frozen=True, slots=True)
class Vended:
    """A server's answer about one table: ``config`` and, by the prefix of a location, ``storage-credentials``.

    Both may contain secrets, so they are in no repr.

    Source: Iceberg's REST specification, ``LoadTableResult``.
    """

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def properties_for(self, location: str, own: Mapping[str, str]) -> Mapping[str, str]:
        """A client's ``own`` properties with those that were vended for ``location``; ``own`` if none were.

        Of several credentials, the one with the longest prefix counts. Then what ``config`` says under the same names
        is a copy for older clients, which says nothing about other locations.

        >>> vended = Vended({"s3.region": "eu"}, {"s3://lake/a": {"s3.access-key-id": "theirs"}})
        >>> vended.properties_for("s3://lake/a/1.avro", {"s3.access-key-id": "ours"})
        {'s3.region': 'eu', 's3.access-key-id': 'theirs'}
        >>> vended.properties_for("s3://lake/b/1.avro", {"s3.access-key-id": "ours"})
        {'s3.access-key-id': 'ours', 's3.region': 'eu'}
        """
        prefix = max((each for each in self.credentials if location.startswith(each)), key=len, default=None)
        copied = {key for each in self.credentials.values() for key in each}
        given = {key: value for key, value in self.config.items() if key not in copied}
        if prefix is not None:
            given |= self.credentials[prefix]
        # A part of another login, such as a session's token, would make the vended key invalid.
        replaced = _OWN_S3_LOGIN if _S3_KEY in given else frozenset[str]()
        return {key: value for key, value in own.items() if key not in replaced} | given

    def has_ended(self) -> bool:
        """Whether one of the credentials says that it ends within a minute, or has ended."""
        everything = [self.config, *self.credentials.values()]
        ends = [value for each in everything for key, value in each.items() if _ENDS in key]
        soon = time.time() * 1000 + _RENEWED_BEFORE_END_MS
        return any(value.isdecimal() and int(value) < soon for value in ends)
