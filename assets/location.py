"""The code location that the code server serves: the definitions of the settings that are here."""

from assets.definitions import build_definitions
from pipeline.settings import load_settings

defs = build_definitions(load_settings())
