"""What Spark calls the properties by which PyIceberg reaches an object store.

Most have the same name. If PyIceberg has another name, or another default, Spark gets its own property, so that one
configuration means the same place to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_S3_SCHEMES = ("s3", "s3a", "s3n")
_LOCAL_SCHEMES = ("", "file")
_S3 = "s3."
_LOGIN = ("access-key-id", "secret-access-key", "session-token")
"""PyIceberg applies them to all of AWS as ``client.*``; Spark's Iceberg only to S3, under their S3 names."""
_REGION = ("client.region", "s3.region", "glue.region")
_KEEPS_TO_HADOOP = ("sql", "hive")
"""Catalogs whose files Spark reads through Hadoop, which doesn't know ``s3://``, unless it is told otherwise."""


def is_on_s3(properties: Mapping[str, str]) -> bool:
    """Whether a catalog with PyIceberg's ``properties`` keeps tables in S3 or a compatible store, as far as they say.

    >>> is_on_s3({"type": "sql", "warehouse": "s3://lake/warehouse"}), is_on_s3({"warehouse": "file:///lake"})
    (True, False)
    """
    return _scheme(properties) in _S3_SCHEMES or any(key.startswith(_S3) for key in properties)


def spark_storage(properties: Mapping[str, str]) -> dict[str, str]:
    """What Spark's catalog needs besides ``properties``, which are PyIceberg's, to reach the same storage.

    >>> properties = {"type": "sql", "warehouse": "s3://lake", "s3.endpoint": "http://store", "s3.region": "eu"}
    >>> sorted(spark_storage(properties))
    ['client.region', 'io-impl', 's3.path-style-access']

    Source: Iceberg's ``S3FileIOProperties`` and ``AwsClientProperties``; PyIceberg's configuration, "S3".
    """
    found = {}
    is_remote = is_on_s3(properties) or _scheme(properties) not in _LOCAL_SCHEMES
    if properties.get("type") in _KEEPS_TO_HADOOP and is_remote:
        found["io-impl"] = "org.apache.iceberg.io.ResolvingFileIO"  # It chooses by each file's scheme.
    if region := next((properties[key] for key in _REGION if properties.get(key)), None):
        found["client.region"] = region
    if "s3.endpoint" in properties:  # Few stores have a host name for each bucket, and PyIceberg expects none.
        is_virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        found["s3.path-style-access"] = "false" if is_virtual else "true"
    shared = {name: properties[f"client.{name}"] for name in _LOGIN if f"client.{name}" in properties}
    return found | {f"{_S3}{name}": value for name, value in shared.items()}


def _scheme(properties: Mapping[str, str]) -> str:
    return urlsplit(properties.get("warehouse", "")).scheme
