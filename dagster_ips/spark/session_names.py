"""What the names of a Spark Connect session mean that only the session knows: temporary views and functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_ips._compat import on_commands
from dagster_ips.core.sql_tokens import sql_tokens

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEW = re.compile(
    r"CREATE (?:OR REPLACE )?(?:GLOBAL )?TEMP(?:ORARY)? VIEW (?P<new>IF NOT EXISTS )?(?P<name>\S+) .*", re.IGNORECASE
)
_FUNCTION = re.compile(
    r"CREATE (?:OR REPLACE )?TEMP(?:ORARY)? FUNCTION (?:IF NOT EXISTS )?(?P<name>\S+) .*", re.IGNORECASE
)
_OWN = re.compile(r"ips_[0-9a-f]{32}")


@dataclass(frozen=True)
class NamedView:
    """The plan of a temporary view, and what names meant when it was made."""

    relation: Any  # PySpark's messages have no public type
    names: SessionNames


@dataclass
class SessionNames:
    """``views`` are temporary views, ``functions`` those that were registered, by name in lower case.

    It ``is_complete`` if the session has been listened to since it began.
    """

    is_complete: bool = False
    views: dict[str, NamedView] = field(default_factory=dict)
    functions: dict[str, object] = field(default_factory=dict)

    def view(self, name: str) -> NamedView | None:
        """The temporary view of that name; None if no such view was made."""
        return self.views.get(_plain(name))

    def function(self, name: str) -> object | None:
        """The function that was registered by the name, or the statement that made it; None if none was."""
        return self.functions.get(_plain(name))

    def hear(self, command: Any) -> None:  # noqa: ANN401  # PySpark's messages have no public type
        """Note what ``command``, which the session has executed, gives names to."""
        match command.WhichOneof("command_type"):
            case "create_dataframe_view" if not _OWN.fullmatch(command.create_dataframe_view.name):
                self._name_view(command.create_dataframe_view.name, command.create_dataframe_view.input)
            case "sql_command":
                self._hear_sql(command.sql_command.input)

    def hear_function(self, name: str, function: object) -> None:
        """Note that ``function`` was registered."""
        self.functions[_plain(name)] = function

    def _hear_sql(self, relation: Any) -> None:  # noqa: ANN401  # as above
        made_of_frames = relation.WhichOneof("rel_type") == "with_relations"
        query = (relation.with_relations.root if made_of_frames else relation).sql.query
        if "create" not in query.lower():
            return
        text = " ".join(sql_tokens(query))
        if (made := _VIEW.fullmatch(text)) and not (made["new"] and _plain(made["name"]) in self.views):
            self._name_view(made["name"], relation)
        elif made := _FUNCTION.fullmatch(text):
            self.functions[_plain(made["name"])] = text

    def _name_view(self, name: str, relation: Any) -> None:  # noqa: ANN401  # as above
        before = SessionNames(self.is_complete, dict(self.views), dict(self.functions))
        self.views[_plain(name)] = NamedView(relation, before)


_HEARD: WeakKeyDictionary[SparkSession, SessionNames] = WeakKeyDictionary()
_NOTHING = SessionNames()


def listen(session: SparkSession, *, from_start: bool = False) -> None:
    """Remember from now on what a Connect session's names mean; a classic session's plans show it themselves."""
    if session not in _HEARD:
        names = SessionNames(is_complete=from_start)
        if on_commands(session, names.hear, names.hear_function):
            _HEARD[session] = names


def names_in(session: SparkSession) -> SessionNames:
    """What is known of the session's names."""
    return _HEARD.get(session, _NOTHING)


def _plain(name: str) -> str:
    return name.replace("`", "").lower().removeprefix("global_temp.")
