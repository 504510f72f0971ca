"""Which permissions Google documents for each call that tidemark makes, and on what. Data, and one function to look up.

Sources: "Access control with IAM" of Pub/Sub; "Control access with IAM" of Cloud Monitoring; "IAM permissions for JSON
methods" and "IAM permissions for XML requests" of Cloud Storage. A call that is not listed has no answer here, so that
a new one is noticed.
"""

import re
from urllib.parse import parse_qs, urlsplit

from tidemark.pipeline.doctor.identity import (
    BREAK_OFF,
    CONSUME,
    CREATE,
    DELETE,
    GET,
    IN_PARTS,
    LIST,
    LOOK,
    PUBLISH,
    REMOVE,
    On,
    Permission,
)

UPDATE = Permission("storage.objects.update", On.BUCKET)
LOOK_AT_BUCKET = Permission("storage.buckets.get", On.BUCKET)

RPC: dict[str, tuple[Permission, ...]] = {
    "/google.pubsub.v1.Subscriber/Pull": (CONSUME,),
    "/google.pubsub.v1.Subscriber/Acknowledge": (CONSUME,),
    "/google.pubsub.v1.Subscriber/ModifyAckDeadline": (CONSUME,),
    "/google.pubsub.v1.Subscriber/GetSubscription": (LOOK,),
    "/google.pubsub.v1.Subscriber/CreateSubscription": (
        Permission("pubsub.subscriptions.create", On.PROJECT),
        Permission("pubsub.topics.attachSubscription", On.TOPIC),
    ),
    "/google.pubsub.v1.Subscriber/DeleteSubscription": (REMOVE,),
    "/google.pubsub.v1.Subscriber/CreateSnapshot": (Permission("pubsub.snapshots.create", On.PROJECT), CONSUME),
    "/google.pubsub.v1.Subscriber/DeleteSnapshot": (Permission("pubsub.snapshots.delete", On.PROJECT),),
    "/google.pubsub.v1.Subscriber/ListSnapshots": (Permission("pubsub.snapshots.list", On.PROJECT),),
    "/google.pubsub.v1.Subscriber/ListSubscriptions": (Permission("pubsub.subscriptions.list", On.PROJECT),),
    "/google.pubsub.v1.Publisher/DeleteTopic": (Permission("pubsub.topics.delete", On.PROJECT),),
    "/google.pubsub.v1.Publisher/ListTopics": (Permission("pubsub.topics.list", On.PROJECT),),
    "/google.pubsub.v1.Publisher/GetTopic": (Permission("pubsub.topics.get", On.TOPIC),),
    "/google.pubsub.v1.Publisher/CreateTopic": (Permission("pubsub.topics.create", On.PROJECT),),
    "/google.pubsub.v1.Publisher/Publish": (PUBLISH.permission,),
    "/google.pubsub.v1.SchemaService/ListSchemaRevisions": (Permission("pubsub.schemas.listRevisions", On.PROJECT),),
    "/google.iam.v1.IAMPolicy/TestIamPermissions": (),
    "/google.monitoring.v3.MetricService/ListTimeSeries": (Permission("monitoring.timeSeries.list", On.PROJECT),),
}
"""By gRPC method. A snapshot is created with a name in the project, of a subscription. What publishes does so to the
topic that is told of the watermark."""

BUCKET, OBJECT = r"/[^/?]+", r"/[^?]+"
JSON: tuple[tuple[str, str, tuple[Permission, ...]], ...] = (
    ("GET", rf"/storage/v1/b{BUCKET}", (LOOK_AT_BUCKET,)),
    ("GET", rf"/storage/v1/b{BUCKET}/iam/testPermissions", ()),
    ("GET", rf"/storage/v1/b{BUCKET}/o", (LIST,)),
    ("GET", rf"(/download)?/storage/v1/b{BUCKET}/o{OBJECT}", (GET,)),
    ("POST", rf"/upload/storage/v1/b{BUCKET}/o", (CREATE, DELETE)),
    ("PUT", rf"/upload/storage/v1/b{BUCKET}/o", ()),  # a part of what a POST began
    ("POST", rf"/storage/v1/b{BUCKET}/o{OBJECT}/(rewriteTo|copyTo|compose)\b.*", (GET, CREATE, DELETE)),
    ("PATCH", rf"/storage/v1/b{BUCKET}/o{OBJECT}", (UPDATE,)),
    ("DELETE", rf"/storage/v1/b{BUCKET}/o{OBJECT}", (DELETE,)),
)
"""By method and path of Cloud Storage's JSON API, the first that fits. Writing needs DELETE as well where an object of
that name may be there. With the precondition that none is, it does not."""

XML: tuple[tuple[str, str, str, tuple[Permission, ...]], ...] = (
    ("GET", BUCKET, "", (LIST,)),
    ("HEAD", BUCKET, "", (LOOK_AT_BUCKET,)),
    ("GET", BUCKET + OBJECT, "", (GET,)),
    ("HEAD", BUCKET + OBJECT, "", (GET,)),
    ("POST", BUCKET + OBJECT, "uploads", (IN_PARTS, CREATE)),
    ("PUT", BUCKET + OBJECT, "uploadId", (IN_PARTS, CREATE)),
    ("POST", BUCKET + OBJECT, "uploadId", (IN_PARTS, CREATE, DELETE)),
    ("DELETE", BUCKET + OBJECT, "uploadId", (BREAK_OFF,)),
    ("PUT", BUCKET + OBJECT, "", (CREATE, DELETE)),
    ("DELETE", BUCKET + OBJECT, "", (DELETE,)),
)
"""By method, path and query of its XML API, in which delta-rs and Polars speak."""


class Unlisted(LookupError):
    """A call that has no permissions here: look up what is documented for it, and list it."""


def permissions_of_rpc(method: str) -> tuple[Permission, ...]:
    """What a gRPC method such as `/google.pubsub.v1.Subscriber/Pull` needs. Raises Unlisted."""
    if method not in RPC:
        raise Unlisted(method)
    return RPC[method]


def permissions_of_http(method: str, target: str, precondition: str | None = None) -> tuple[Permission, ...]:
    """What a request to Cloud Storage needs, by its method, its path and query, and the header
    `x-goog-if-generation-match`. Raises Unlisted."""
    url = urlsplit(target)
    path, query = url.path.rstrip("/") or "/", parse_qs(url.query, keep_blank_values=True)
    is_new = precondition == "0" or query.get("ifGenerationMatch") == ["0"]
    for needed in _fitting(method, path, query):
        return tuple(one for one in needed if not (is_new and one == DELETE))
    raise Unlisted(f"{method} {target}")


def _fitting(method: str, path: str, query: dict[str, list[str]]) -> list[tuple[Permission, ...]]:
    if path.startswith(("/storage/v1/", "/upload/", "/download/")):
        return [needed for verb, form, needed in JSON if verb == method and re.fullmatch(form, path)]
    return [
        needed
        for verb, form, key, needed in XML
        if verb == method and re.fullmatch(form, path) and (not key or key in query)
    ]
