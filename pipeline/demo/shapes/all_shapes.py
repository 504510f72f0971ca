"""All message shapes by their names."""

from collections.abc import Mapping

from tidemark.pipeline.demo.shapes.arrays import Arrays
from tidemark.pipeline.demo.shapes.attributes import Attributes
from tidemark.pipeline.demo.shapes.avro import Avro
from tidemark.pipeline.demo.shapes.cloudevents import CloudEvents
from tidemark.pipeline.demo.shapes.gzipped import Gzipped
from tidemark.pipeline.demo.shapes.json_object import JsonObject
from tidemark.pipeline.demo.shapes.names import ShapeName
from tidemark.pipeline.demo.shapes.nested import Nested
from tidemark.pipeline.demo.shapes.protobuf import Protobuf
from tidemark.pipeline.demo.shapes.seconds import Seconds
from tidemark.pipeline.demo.shapes.shape import Shape

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
