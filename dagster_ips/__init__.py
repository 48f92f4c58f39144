"""Incremental processing of Iceberg tables as Dagster assets, on Spark.

An asset reads the rows that were added to and removed from its upstreams since it last ran, instead of a window of
days. What changed is found from Iceberg's metadata, and each change is consumed exactly once.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ips.public import *  # noqa: F403  # all that it names is public
else:
    # Nothing is imported before it is asked for: to import Dagster takes a second, and not every command needs it.
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return import_module("dagster_ips.public").__all__
        if name == "public" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module("dagster_ips.public"), name)

    def __dir__() -> list[str]:
        return [*globals(), *import_module("dagster_ips.public").__all__]
