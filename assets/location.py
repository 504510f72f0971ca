"""The code location that the code server serves: the definitions of the settings that are here."""

from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.settings import load_settings

defs = build_definitions(load_settings())
