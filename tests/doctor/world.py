"""A Pub/Sub, a bucket and a project on loopback that know who may do what: `testIamPermissions` answers by one table.

The table is asked and not enforced. The HTTP server puts the time on its answers that the test wants.
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1 import types

from tests.fixtures_emulator import unique_pubsub
from tests.http_server import Quiet, serving
from tests.quick import classic
from tidemark.local.emulator.api import Shared
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import handlers
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.finding import Setup
from tidemark.pipeline.doctor.identity import Component, On, Permission, permissions_of
from tidemark.pipeline.pubsub.requirements import wanted
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings, SignalSettings

BUCKET = "the-lake"
A_GOOD_BUCKET: dict[str, Any] = {
    "name": BUCKET,
    "location": "EUROPE-WEST3",
    "iamConfiguration": {"publicAccessPrevention": "enforced", "uniformBucketLevelAccess": {"enabled": True}},
}
CLASSIC = classic("local[1]", **{"spark.jars.packages": "com.google.cloud.bigdataoss:gcs-connector:4.0.4"})


@dataclass
class World:
    """What is there, what is granted on it, and how far the servers' clock is from this machine's."""

    pubsub: PubSubSettings
    model: PubSubModel
    endpoint: str = ""
    granted: dict[str, set[str]] = field(default_factory=dict)
    bucket: dict[str, Any] | None = field(default_factory=lambda: dict(A_GOOD_BUCKET))
    bucket_status: int = 200
    clock_is_ahead: timedelta = timedelta(0)
    publish_to: str | None = None

    @property
    def settings(self) -> Settings:
        return Settings(
            pubsub=self.pubsub,
            lake=LakeSettings(uri=f"gs://{BUCKET}/lake", endpoint=self.endpoint),
            spark=CLASSIC,
            signal=SignalSettings(publish_to=self.publish_to),
        )

    def setup(self, *components: Component) -> Setup:
        setup = Setup(self.settings, SystemClock(), resource_manager=self.endpoint)
        return replace(setup, components=components) if components else setup

    def resources(self, on: On) -> list[str]:
        """What a kind of permission is granted on, as the servers are asked for it."""
        pubsub = self.pubsub
        return {
            On.TOPIC: [pubsub.topic_path],
            On.SIGNAL: [f"projects/{pubsub.project}/topics/{self.publish_to}"],
            On.SUBSCRIPTION: [pubsub.tracking_path, pubsub.base_path],
            On.TRACKING: [pubsub.tracking_path],
            On.BASE: [pubsub.base_path],
            On.PROJECT: [pubsub.project],
            On.BUCKET: [BUCKET],
        }[on]

    def grant_all(self) -> None:
        """Everything that any part needs; what provisioning needs, on the project."""
        on_project = {permission.name for permission in permissions_of([Component.PROVISION])}
        self.granted.setdefault(self.pubsub.project, set()).update(on_project)
        for permission in permissions_of(Component):
            for resource in self.resources(permission.on):
                self.granted.setdefault(resource, set()).add(permission.name)

    def take_away(self, permission: Permission) -> None:
        for resource in {*self.resources(permission.on), self.pubsub.project}:
            self.granted[resource].discard(permission.name)

    def subscribe(self, path: str, **options: Any) -> None:
        """A subscription as `provision` makes it, but for these options."""
        config = types.Subscription({**wanted(self.pubsub, path), **options})
        self.model.create_subscription(types.Subscription.pb(config), SystemClock().now())

    def provision(self, **base: Any) -> None:
        """The topic and both subscriptions; base with these options."""
        self.model.create_topic(types.Topic.pb()(name=self.pubsub.topic_path))
        self.subscribe(self.pubsub.tracking_path)
        self.subscribe(self.pubsub.base_path, **base)

    def tested(self, request: Any, _: object) -> Any:
        """google.iam.v1.IAMPolicy/TestIamPermissions."""
        held = self.granted.get(request.resource, set())
        kept = [name for name in request.permissions if name in held]
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=kept)


@contextmanager
def served_world(interceptors: Sequence[grpc.ServerInterceptor] = ()) -> Iterator[World]:
    """The world behind a gRPC and an HTTP server on loopback. Nothing is provisioned or granted."""
    model = PubSubModel(rng=random.Random(0))
    shared = Shared(model, SystemClock())
    world = World(unique_pubsub("127.0.0.1:1"), model)
    iam = grpc.unary_unary_rpc_method_handler(
        world.tested,
        iam_policy_pb2.TestIamPermissionsRequest.FromString,
        iam_policy_pb2.TestIamPermissionsResponse.SerializeToString,
    )
    policy = grpc.method_handlers_generic_handler("google.iam.v1.IAMPolicy", {"TestIamPermissions": iam})
    server = grpc.server(ThreadPoolExecutor(8), handlers=[*handlers(shared), policy], interceptors=interceptors)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    world.pubsub = world.pubsub.model_copy(update={"emulator_host": f"127.0.0.1:{port}"})
    try:
        with serving(type("Handler", (OfTheWorld,), {"world": world})) as world.endpoint:
            yield world
    finally:
        shared.close()
        server.stop(grace=None).wait()


class OfTheWorld(Quiet):
    """Cloud Storage's and the Resource Manager's answers."""

    world: World

    def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
        world, url = self.world, urlsplit(self.path)
        if world.bucket is None:
            self._answer(404, {"error": {"message": "not found"}})
        elif url.path == f"/storage/v1/b/{BUCKET}/iam/testPermissions":
            held = world.granted.get(BUCKET, set())
            self._answer(200, {"permissions": [name for name in parse_qs(url.query)["permissions"] if name in held]})
        elif url.path == f"/storage/v1/b/{BUCKET}/o":
            self._answer(200, {"items": []})
        elif url.path != f"/storage/v1/b/{BUCKET}":
            self._answer(404, {"error": {"message": "not found"}})
        elif world.bucket_status != 200:
            self._answer(world.bucket_status, {"error": {"message": "you may not"}})
        else:
            self._answer(200, world.bucket)

    def do_POST(self) -> None:  # noqa: N802 (the name that the server calls)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        project = self.path.removeprefix("/v1/projects/").removesuffix(":testIamPermissions")
        held = self.world.granted.get(project, set())
        self._answer(200, {"permissions": [name for name in asked["permissions"] if name in held]})

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        self.reply(json.dumps(said).encode(), status=status)

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002 (what the base class asks for)
        return format_datetime(SystemClock().now() + self.world.clock_is_ahead, usegmt=True)
