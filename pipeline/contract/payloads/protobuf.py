"""Payloads that are protobuf messages, in binary or in protobuf's JSON form."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from tidemark.pipeline.contract.payloads.bounds import ValueBudget, refuse_many_values
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.proto_types import MessageType
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable

COMPILED_WITHIN_SECONDS = 30
"""Time limit of the compiler, which takes a fraction of a second for the 300 KB that Pub/Sub allows."""

SOURCE, COMPILED = "schema.proto", "schema.binpb"

UNFIT = (
    *(message.DecodeError, json_format.Error),
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""Errors raised when reading bytes that were written with another schema or are not protobuf; RecursionError if they
are nested too deeply."""


class ProtobufCodec:
    """Reads the payloads that were written with one schema, as plain values. Its methods raise Unreadable."""

    def __init__(self, definition: Definition) -> None:
        self._origin = definition.origin
        content = definition.content
        if not definition.is_compiled:
            content = compiled(content, definition.origin)
        try:
            descriptor = _first_message(content)
            self._message: Any = message_factory.GetMessageClass(descriptor)
            self._type = MessageType(descriptor)
            self._most = self._type.widest()
        except UNFIT as error:
            raise Unreadable(f"the schema {self._origin} is not protobuf's: {error}") from error

    def binary(self, data: bytes) -> Any:
        """Read a message in protobuf's binary form."""
        try:
            self._type.refuse_many_values(data, self._most)
            return self._type.of(self._message.FromString(data), ValueBudget())
        except UNFIT as error:
            raise Unreadable(f"not protobuf of {self._origin}: {error}"[:300]) from error

    def text(self, data: bytes) -> Any:
        """Read a message in protobuf's JSON form, with field names as in the .proto file or in camel case."""
        try:
            refuse_many_values(data, self._most)
            return self._type.of(json_format.Parse(data, self._message(), ignore_unknown_fields=True), ValueBudget())
        except UNFIT as error:
            raise Unreadable(f"not protobuf's JSON of {self._origin}: {error}"[:300]) from error

    def value(self, value: Any) -> Any:
        """Like `text`, for JSON that is already parsed."""
        try:
            return self.text(orjson.dumps(value))
        except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
            raise Unreadable(f"not protobuf's JSON of {self._origin}: {error}") from error


def _first_message(content: bytes) -> Any:
    """Return the first message of the last file; the other files are its imports. Pub/Sub allows one top-level
    message."""
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    if not files or not files[-1].message_type:
        raise ValueError("it defines no message")
    main = files[-1]
    return pool.FindMessageTypeByName(".".join(filter(None, (main.package, main.message_type[0].name))))


def compiled(text: bytes, origin: str) -> bytes:
    """Compile a .proto text, as stored in Pub/Sub, to a FileDescriptorSet that includes its imports of protobuf's own
    files. Raises Unreadable for an invalid text, and Unknown if protoc times out or is killed.

    protoc runs in a separate process, because it is written in C++ and reports errors only on standard error.
    """
    with TemporaryDirectory(prefix="tidemark-proto-") as folder:
        Path(folder, SOURCE).write_bytes(text)
        options = [f"--proto_path={folder}", f"--descriptor_set_out={Path(folder, COMPILED)}", "--include_imports"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, SOURCE]
        try:
            done = subprocess.run(
                command, capture_output=True, cwd=folder, timeout=COMPILED_WITHIN_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unknown(f"protoc took more than {COMPILED_WITHIN_SECONDS} s for the schema {origin}") from error
        if done.returncode < 0:
            raise Unknown(f"protoc was killed by signal {-done.returncode} while it read the schema {origin}")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()
            said = "; ".join(line.partition(f"{SOURCE}:")[2].strip() for line in lines if f"{SOURCE}:" in line)
            raise Unreadable(f"the schema {origin} is not protobuf's: {said[:500]}")
        return Path(folder, COMPILED).read_bytes()
