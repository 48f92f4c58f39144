"""How users name an asset in declarations: everywhere in the same ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

import dagster as dg

AssetName: TypeAlias = dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec | Sequence[str] | str


def asset_key_of(asset: AssetName) -> dg.AssetKey:
    """The key of an asset; as text, it has slashes between its parts, as in Dagster's UI.

    Example:
        >>> asset_key_of("media/playback") == asset_key_of(["media", "playback"]) == dg.AssetKey(["media", "playback"])
        True
    """
    if isinstance(asset, dg.AssetsDefinition | dg.AssetSpec):
        return asset.key
    return dg.AssetKey.from_user_string(asset) if isinstance(asset, str) else dg.AssetKey.from_coercible(asset)


def as_declared(key: dg.AssetKey) -> str:
    """A key as Python declares it.

    Example:
        >>> print(as_declared(dg.AssetKey("playback")), as_declared(dg.AssetKey(["media", "playback"])))
        "playback" ["media", "playback"]
    """
    return json.dumps(key.path if len(key.path) > 1 else key.path[0], ensure_ascii=False)
