"""An S3 on loopback (moto), in threads of this process."""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import botocore.session
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request


class ObjectStore:
    """`bucket`: a new one; `environment`: what its clients find in the environment."""

    def __init__(self) -> None:
        self.bucket = f"test-{secrets.token_hex(8)}"  # the buckets of all servers of a process are the same
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.environment: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }  # fmt: skip
        self._client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        self._client.create_bucket(Bucket=self.bucket)

    def names(self) -> list[str]:
        found = self._client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return sorted(each["Key"] for each in found)

    def unfinished_uploads(self) -> list[str]:
        found = self._client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return sorted(each["Key"] for each in found)

    def stop(self) -> None:
        self._client.close()
        self._server.stop()


@contextmanager
def run_object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    try:
        yield store
    finally:
        store.stop()
