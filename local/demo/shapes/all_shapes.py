"""All message shapes, keyed by name."""

from collections.abc import Mapping

from tidemark.local.demo.shapes import json_shapes, schema_shapes
from tidemark.local.demo.shapes.shape import Shape, ShapeName

SHAPES: Mapping[ShapeName, Shape] = {
    ShapeName.JSON: json_shapes.JsonObject(),
    ShapeName.NESTED: json_shapes.Nested(),
    ShapeName.SECONDS: json_shapes.Seconds(),
    ShapeName.ATTRIBUTES: json_shapes.AttributesShape(),
    ShapeName.ARRAYS: json_shapes.Arrays(),
    ShapeName.GZIP: json_shapes.Gzipped(),
    ShapeName.CLOUDEVENTS: json_shapes.CloudEvents(),
    ShapeName.AVRO: schema_shapes.Avro(),
    ShapeName.PROTOBUF: schema_shapes.Protobuf(),
}
