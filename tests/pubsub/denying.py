"""A server's calls refused, as the service refuses them to whom lacks the permission."""

from dataclasses import dataclass, field
from typing import Any

import grpc

LIST = "ListSchemaRevisions"


@dataclass
class Denying(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses these methods as the service does without the permission; the revisions of schemas that end so alone."""

    methods: set[str] = field(default_factory=set)
    schemas: tuple[str, ...] = ()
    refused: int = 0

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler, name = continuation(details), details.method.rpartition("/")[2]

        def answer(request: Any, context: Any) -> Any:
            is_refused = name == LIST and request.name.endswith(self.schemas or ("/*",))
            if is_refused or name in self.methods:
                self.refused += 1
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "the caller does not have permission")
            return handler.unary_unary(request, context)

        if handler is None or name not in (LIST, "GetTopic", *self.methods):
            return handler
        return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)
