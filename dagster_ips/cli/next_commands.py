"""Completes the commands that a text tells you to run next, so that you can paste them."""

from __future__ import annotations

import re
import shlex

import click
from click.core import ParameterSource
from dagster_shared.cli import dg_workspace_options

_WORD = r"""(?:'[^']*'|"[^"]*"|[^\s'"`.,;)]|(?:\.+|[,;)])(?=[^\s.,;)]))+"""
NEXT = re.compile(rf"(?:^ *|: |\(|run )dagster(?:-ips| sensor)(?: {_WORD})+", re.MULTILINE)
"""A command where a text tells to run it. A dot or comma at its end belongs to the sentence."""


def with_workspace(text: str) -> str:
    """Add the current command's options for finding definitions to the commands that ``text`` tells to run."""
    context = click.get_current_context(silent=True)
    options = shlex.join(_workspace_options(context)) if context is not None else ""
    return NEXT.sub(lambda found: f"{found[0]} {options}", text) if options else text


def _workspace_options(context: click.Context) -> list[str]:
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _NAMES or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        given = context.params[name]
        option = min(parameter.opts, key=len)
        for value in given if isinstance(given, list | tuple) else [given]:
            words += [option] if isinstance(value, bool) else [option, str(value)]
    return words


def _names() -> frozenset[str]:
    @click.command()
    @dg_workspace_options
    def command() -> None:
        pass

    return frozenset(parameter.name or "" for parameter in command.params)


_NAMES = _names()
