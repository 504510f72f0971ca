"""A provider of Google's resources for Terraform, on loopback: it has the real one's arguments, and asks nobody.

Terraform itself evaluates the module, its validations and its roles. Computed values are known at once: an id is the
resource's name within its project, an account has the address that Google would give it.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgpack
from grpc_tools import protoc

HERE = Path(__file__).parent
RESOURCES = json.loads((HERE / "google_provider.json").read_text())["resources"]
OF_TERRAFORM = {"for_each", "count", "depends_on", "provider", "lifecycle"}
COMPUTED = ("id", "email", "member")
LIST = 2
TYPES: dict[str, Any] = {
    **dict.fromkeys(["retain_acked_messages", "enable_exactly_once_delivery", "enable_message_ordering"], "bool"),
    **dict.fromkeys(["uniform_bucket_level_access", "force_destroy", "enabled"], "bool"),
    **dict.fromkeys(["ack_deadline_seconds", "threshold_value", "retention_duration_seconds"], "number"),
    **dict.fromkeys(["num_finite_buckets", "growth_factor", "scale"], "number"),
    "permissions": ["list", "string"],
    "notification_channels": ["list", "string"],
}
"""The arguments that are no text."""


def compiled(folder: Path) -> Any:
    """The protocol's classes and stubs, generated into a folder."""
    arguments = ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--grpc_python_out={folder}", "plugin.proto"]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("plugin_pb2"), importlib.import_module("plugin_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


Asked = list[tuple[str, dict[str, Any]]]
"""Each resource's kind, with the arguments that it was given."""


class Google:
    """The calls that Terraform makes for a plan, and what they asked for."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self.asked: Asked = []

    def GetProviderSchema(self, _request: Any, _context: Any) -> Any:  # noqa: N802 (the protocol's name)
        schemas = self._messages.Schemas(provider=self._messages.Schema(block=self._messages.Block()))
        for kind, shape in RESOURCES.items():
            of_kind = schemas.data_source_schemas if kind.startswith("data.") else schemas.resource_schemas
            of_kind[kind.removeprefix("data.")].block.CopyFrom(self._block(shape, COMPUTED))
        return schemas

    def PlanResourceChange(self, request: Any, _context: Any) -> Any:  # noqa: N802 (the protocol's name)
        return self._messages.Planned(planned_state=self._with_computed(request.type_name, request.proposed_new_state))

    def ReadDataSource(self, request: Any, _context: Any) -> Any:  # noqa: N802 (the protocol's name)
        return self._messages.State(state=self._with_computed(f"data.{request.type_name}", request.config))

    def __getattr__(self, _call: str) -> Any:
        return lambda _request, _context: self._messages.Empty()

    def _block(self, shape: dict[str, Any], computed: tuple[str, ...] = ()) -> Any:
        new = self._messages
        given = {*shape["arguments"]} - OF_TERRAFORM
        attributes = [new.Attribute(name=name, type=b'"string"', computed=True) for name in {*computed} - given]
        for name in sorted(given):
            is_required = name in shape["required"]
            type_ = json.dumps(TYPES.get(name, "string")).encode()
            attributes.append(new.Attribute(name=name, type=type_, required=is_required, optional=not is_required))
        blocks = [
            new.NestedBlock(type_name=name, block=self._block(inner), nesting=LIST)
            for name, inner in sorted(shape.get("blocks", {}).items())
        ]
        return new.Block(attributes=attributes, block_types=blocks)

    def _with_computed(self, kind: str, given: Any) -> Any:
        values = msgpack.unpackb(given.msgpack)
        self.asked.append((kind, {name: value for name, value in values.items() if value not in (None, [])}))
        name = values.get("name") or values.get("account_id") or values.get("role_id")
        values["id"] = f"projects/{values.get('project')}/{kind.removeprefix('data.')}/{name}"
        values["email"] = f"{name}@{values.get('project')}.iam.gserviceaccount.com"
        values["member"] = values.get("member") or f"serviceAccount:{values['email']}"
        return self._messages.DynamicValue(msgpack=msgpack.packb(values))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Asked, dict[str, str]]]:
    """What the provider is asked for, and the variables by which Terraform asks it."""
    messages, stubs = compiled(folder)
    google = Google(messages)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    stubs.add_ProviderServicer_to_server(google, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    where = {"Network": "tcp", "String": f"127.0.0.1:{port}"}
    reattach = {"Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True, "Addr": where}
    try:
        yield google.asked, {"TF_REATTACH_PROVIDERS": json.dumps({"hashicorp/google": reattach})}
    finally:
        server.stop(0).wait()
