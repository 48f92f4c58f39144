"""Tells mistakes in a catalog's properties from a catalog that doesn't answer, which may answer later."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ips.errors import DeclarationError
from dagster_ips.iceberg.late import catalog

CLASS = "py-catalog-impl"
_AT_AN_ADDRESS = frozenset({"rest", "hive", "sql"})


def require_catalog(name: str, properties: Mapping[str, str]) -> None:
    """Fail unless ``properties`` say which catalog it is, and where.

    Values aren't quoted, because an address may contain a password.

    Raises:
        DeclarationError: they don't.
    """
    kind, kinds = properties.get("type"), ", ".join(each.value for each in catalog.CatalogType)
    if CLASS in properties:
        if kind is not None:
            raise _mistake(name, f"it has both the property type and {CLASS}.", "Leave one of them out.")
    elif not properties:
        remedy = "Correct the name, or describe the catalog in .pyiceberg.yaml or in PYICEBERG_CATALOG__<NAME>__..."
        raise _mistake(name, "PyIceberg has no configuration for it.", remedy)
    elif kind is None:
        raise _mistake(name, "its properties show no type.", f"Set type to one of {kinds}.")
    elif kind not in {each.value for each in catalog.CatalogType}:
        raise _mistake(name, "PyIceberg doesn't know the type in its properties.", f"Set type to one of {kinds}.")
    elif kind in _AT_AN_ADDRESS and not properties.get("uri"):
        raise _mistake(name, f"its type is {kind}, but it has no property uri.", "Set uri to its address.")


def mistake_behind(name: str, error: Exception) -> DeclarationError | None:
    """The mistake for which PyIceberg couldn't open a catalog; None if it may be no mistake."""
    # By their names: two of them belong to packages that needn't be installed.
    match type(error).__name__:
        case "NotInstalledError":
            problem = f"a package that PyIceberg needs for it isn't installed ({error.__cause__})."
            return _mistake(name, problem, f"{error}.")
        case "NoSuchModuleError":
            problem = "SQLAlchemy doesn't know the kind of database in its property uri."
            return _mistake(name, problem, "Begin uri with postgresql:// (not postgres://) or sqlite:///.")
        case "NoRegionError":
            return _mistake(name, "no AWS region is set for it.", "Set the property client.region.")
    return None


def _mistake(name: str, problem: str, remedy: str) -> DeclarationError:
    return DeclarationError(asset=f"Catalog {name}", problem=problem, remedy=remedy)
