"""Presigned links against what others sign: Amazon's own example, and botocore."""

from datetime import UTC, datetime
from unittest import mock

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from acs.storage.shards.presigned import Presigner

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
MOMENT = datetime(2013, 5, 24, tzinfo=UTC)


def test_the_example_of_amazons_documentation_has_its_signature():
    presigner = Presigner("https", "examplebucket.s3.amazonaws.com", False, "us-east-1", *KEYS.values())
    assert presigner.url("examplebucket/test.txt", MOMENT, 86400) == (
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
        "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize(
    ("address", "environ", "where"),
    [
        ("s3://rows/acs", KEYS, "https://rows.s3.eu-central-1.amazonaws.com/acs/hrv_1/x%20%C3%A9~1.parquet?"),
        ("s3://my.rows/acs", KEYS, "https://s3.eu-central-1.amazonaws.com/my.rows/acs/hrv_1/x%20%C3%A9~1.parquet?"),
        ("s3://rows/acs?scheme=http&endpoint_override=minio:9000", KEYS, "http://minio:9000/rows/acs/hrv_1/"),
        ("s3://rows/acs?endpoint_override=https%3A%2F%2Fminio%3A443%2F", KEYS, "https://minio/rows/acs/hrv_1/"),
        ("s3://rows/acs", {**KEYS, "AWS_ENDPOINT_URL": "http://minio:80"}, "http://minio/rows/acs/hrv_1/"),
        ("s3://rows/acs", {**KEYS, "AWS_SESSION_TOKEN": "a/t+k="}, "https://rows.s3.eu-central-1.amazonaws.com/acs/"),
        ("s3://a%2Fb:c%2Bd@rows/acs", {}, "https://rows.s3.eu-central-1.amazonaws.com/acs/"),
    ],
)
def test_botocore_signs_the_same(address, environ, where):
    presigner = Presigner.of(address, "eu-central-1", environ)
    path = f"{'my.' if 'my.' in address else ''}rows/acs/hrv_1/x é~1.parquet"
    url = presigner.url(path, MOMENT, 600)
    assert url.startswith(where)
    theirs = AWSRequest("GET", url.partition("?")[0])
    credentials = Credentials(presigner.key_id, presigner.secret, presigner.token)
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=MOMENT):
        botocore.auth.S3SigV4QueryAuth(credentials, "s3", "eu-central-1", expires=600).add_auth(theirs)
    assert url.rpartition("=")[2] == theirs.url.partition("X-Amz-Signature=")[2]


def test_no_link_lives_longer_than_a_bucket_allows():
    presigner = Presigner.of("s3://rows/acs", "us-east-1", KEYS)
    assert "X-Amz-Expires=604800&" in presigner.url("rows/x", MOMENT, 10_000_000)


def test_without_keys_there_are_no_links():
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY"):
        Presigner.of("s3://rows/acs", "us-east-1", {"AWS_ACCESS_KEY_ID": "an-id"})


def test_keys_are_not_shown():
    shown = repr(Presigner.of("s3://rows/acs", "us-east-1", KEYS))
    assert not any(key in shown for key in KEYS.values())
