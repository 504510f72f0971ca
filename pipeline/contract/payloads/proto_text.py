"""Compiling the text of a .proto file, as Pub/Sub keeps a schema, to descriptors."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable

COMPILED_WITHIN_SECONDS = 30
"""The compiler takes a fraction of a second for the 300 KB that Pub/Sub allows."""

SOURCE, COMPILED = "schema.proto", "schema.binpb"


def compiled(text: bytes, origin: str) -> bytes:
    """The FileDescriptorSet of a .proto text, with what it imports of protobuf's own. Raises Unreadable, and Unknown
    where the machine is too slow to say.

    protoc runs in a process of its own, as it is written in C++ and says what is wrong on its standard error only.
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
            raise Unknown(f"the schema {origin} takes protoc more than {COMPILED_WITHIN_SECONDS} s") from error
        if done.returncode < 0:
            raise Unknown(f"protoc was ended by signal {-done.returncode} while it read the schema {origin}")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()
            said = "; ".join(line.partition(f"{SOURCE}:")[2].strip() for line in lines if f"{SOURCE}:" in line)
            raise Unreadable(f"the schema {origin} is not protobuf's: {said[:500]}")
        return Path(folder, COMPILED).read_bytes()
