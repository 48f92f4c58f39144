"""An S3-compatible object store for the tests: moto's server, in memory, on a free port of 127.0.0.1.

It checks the signature of every request: it serves only clients that have the key and its secret.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3

from tests.support.ports import free_port

_START_SECONDS = 60
_EVERYTHING = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
REGION = "eu-central-1"


@dataclass(frozen=True)
class ObjectStore:
    """A running server, and the only login that it accepts."""

    port: int
    pid: int
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)

    @property
    def endpoint(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    def new_bucket(self) -> str:
        """Create an empty bucket; returns its name."""
        name = f"lake-{uuid.uuid4().hex}"
        self.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        return name

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's properties for this store, as a user writes them."""
        login = {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret}
        return {"s3.endpoint": self.endpoint, "s3.region": REGION, **login}

    def objects(self, bucket: str) -> dict[str, int]:
        """The size in bytes of each object, by its key."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", ())}

    def content(self, bucket: str, key: str) -> bytes:
        """The content of one object."""
        content: bytes = self.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def client(self, service: str = "s3") -> Any:  # noqa: ANN401  # boto3 creates its classes at run time
        """AWS's own client for the store."""
        login = {"aws_access_key_id": self.key or "nobody", "aws_secret_access_key": self.secret or "yet"}
        return boto3.client(service, endpoint_url=self.endpoint, region_name=REGION, **login)

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()  # noqa: S310  # http, ours
        except (OSError, urllib.error.URLError):
            return False
        return True

    def guarded(self) -> ObjectStore:
        """The same store with a new user, who may do everything in S3. From now on it serves nobody else."""
        users = self.client("iam")
        users.create_user(UserName="lake")
        policy = json.dumps({"Version": "2012-10-17", "Statement": [_EVERYTHING]})
        users.put_user_policy(UserName="lake", PolicyName="lake", PolicyDocument=policy)
        login = users.create_access_key(UserName="lake")["AccessKey"]
        url, plain = f"{self.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, b"0", plain)).close()  # noqa: S310  # http, ours
        return replace(self, key=login["AccessKeyId"], secret=login["SecretAccessKey"])


@contextlib.contextmanager
def running_object_store() -> Iterator[ObjectStore]:
    """A new, empty store. Everything in it is lost when it ends."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        tempfile.TemporaryFile("w+b") as output,
        subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=output, stderr=output) as process,
    ):
        try:
            store = ObjectStore(port, process.pid)
            deadline = time.monotonic() + _START_SECONDS
            while not store.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    message = f"The object store did not start:\n{output.read().decode()}"
                    raise RuntimeError(message)
                time.sleep(0.1)
            yield store.guarded()
        finally:
            process.kill()  # The server has nothing to save.
