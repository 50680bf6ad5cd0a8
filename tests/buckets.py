"""A real S3-compatible server on loopback, and what it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server for as long as the block runs."""
    # It would tell of every request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        moto.stop()


def s3_client(server: str) -> Any:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return boto3.client("s3", endpoint_url=server, region_name="us-east-1", **keys)


def keys(client: Any, bucket: str) -> list[str]:
    """All objects but the empty `folder/` ones that pyarrow leaves where it deleted something."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    return [key for key in found if not key.endswith("/")]
