"""All message shapes by their names."""

from collections.abc import Mapping

from tidemark.pipeline.demo.shapes.json_shapes import (
    Arrays,
    Attributes,
    CloudEvents,
    Gzipped,
    JsonObject,
    Nested,
    Seconds,
)
from tidemark.pipeline.demo.shapes.schema_shapes import Avro, Protobuf
from tidemark.pipeline.demo.shapes.shape import Shape, ShapeName

SHAPES: Mapping[ShapeName, Shape] = {
    ShapeName.JSON: JsonObject(),
    ShapeName.NESTED: Nested(),
    ShapeName.SECONDS: Seconds(),
    ShapeName.ATTRIBUTES: Attributes(),
    ShapeName.ARRAYS: Arrays(),
    ShapeName.GZIP: Gzipped(),
    ShapeName.CLOUDEVENTS: CloudEvents(),
    ShapeName.AVRO: Avro(),
    ShapeName.PROTOBUF: Protobuf(),
}
