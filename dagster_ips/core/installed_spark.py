"""The PySpark that is installed, without importing it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version


@cache
def installed_version() -> str:
    """The version, such as ``4.1.4``."""
    return version("pyspark")


def minor_version(version: str) -> tuple[int, int]:
    """The parts of a Spark version on which its behavior depends.

    >>> minor_version("4.1.4"), minor_version("4.0.1-amzn-0"), minor_version("4.2.0.dev1")
    ((4, 1), (4, 0), (4, 2))
    """
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
