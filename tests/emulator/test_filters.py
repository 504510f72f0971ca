"""Pub/Sub's filter language: Google's documented examples, what is refused, and random expressions."""

import json
from collections.abc import Callable, Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.builders import BASE, START, a_model, a_subscription, after, plain
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.filters import parse_filter
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import Invalid

COM, NET, OTHER, NONE = {"name": "com"}, {"name": "net"}, {"domain": "com"}, dict[str, str]()
TAGGED = {"name": "com", "iana.org/language_tag": "en"}

DOCUMENTED = [
    ("NOT attributes:name", [OTHER, NONE]),
    ('hasPrefix(attributes.name, "co")', [COM, TAGGED]),
    ('hasPrefix(attributes.name, "om")', []),
    ('attributes:name AND attributes."iana.org/language_tag" = "en"', [TAGGED]),
    ("attributes:name OR attributes:domain", [COM, NET, TAGGED, OTHER]),
    ('attributes.name = "com" AND -attributes:"iana.org/language_tag"', [COM]),
    ('attributes:"iana.org/language_tag" AND (attributes.name = "net" OR attributes.name = "com")', [TAGGED]),
]
"""A filter, and which of the five messages pass. Comparisons for equality, alone and of an attribute that
is absent, are among the random expressions below."""


@pytest.mark.parametrize(("text", "passing"), DOCUMENTED)
def test_a_documented_filter_lets_pass_what_the_documentation_says(text: str, passing: list[Mapping[str, str]]) -> None:
    passes = parse_filter(text)
    assert [message for message in (COM, NET, TAGGED, OTHER, NONE) if passes(message)] == passing


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ('"com" = attributes.name', 1, "attributes:KEY"),
        ("attributes.name = attributes.website", 19, "double quotes"),
        (r"attributes:\u307F", 12, "a key"),
        ("attributes:a AND attributes:b OR attributes:c", 31, "parentheses"),
        ("attributes:a attributes:b", 14, "AND, OR or the end"),
        ("NOT NOT attributes:a", 5, "attributes:KEY"),
        ("attributes. a = 'b'", 12, "a key"),
        (r'attributes.a = "\q"', 16, "escapes such as"),
        (r'attributes.a = "\ud800"', 16, "escapes such as"),
        ('attributes.a = "b', 16, "double quotes"),
        ('attributes.a = "a\nb"', 16, "double quotes"),
        ("attributes.a", 13, "= or !="),
        ("(attributes:a", 14, "expected )"),
        ("attributes:a)", 13, "AND, OR or the end"),
        ('hasPrefix(attributes:a, "b")', 11, "attributes.KEY"),
        ("attributes:a AND ", 18, "attributes:KEY"),
        (" ", 2, "attributes:KEY"),
        (254 * "(", 255, "attributes:KEY"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_its_position(text: str, at: int, wanted: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_filter(text)
    _, _, said = str(refused.value).partition(repr(text))
    assert said.startswith(f", at character {at}: expected ")
    assert wanted in said


def test_a_filter_is_measured_in_bytes() -> None:
    fits = f'attributes.a = "{119 * "é"}é"'
    assert len(fits.encode()) == 256 + 1
    with pytest.raises(Invalid, match="257 bytes long; the maximum is 256"):
        parse_filter(fits)
    assert parse_filter(fits.replace(" = ", "= "))({"a": 120 * "é"})


KEYS, VALUES = ["a", "b-1", "c d", 'e"', "é"], ["", "x", "xy", 'x"\\']
Evaluated = tuple[str, Callable[[Mapping[str, str]], bool]]


def quoted(key: str) -> str:
    return key if key in ("a", "b-1") else json.dumps(key)


COMPARISONS: list[Evaluated] = [
    *((f"attributes:{quoted(key)}", lambda m, k=key: k in m) for key in KEYS),
    *(
        (text.format(quoted(key), json.dumps(value)), lambda m, test=test, k=key, v=value: test(m.get(k), v))
        for key, value in product(KEYS, VALUES)
        for text, test in [
            ("attributes.{} = {}", lambda found, value: found == value),
            ("attributes.{}!={}", lambda found, value: found is None or found != value),
            (
                "hasPrefix( attributes.{} ,{})",
                lambda found, value: (found or "")[: len(value)] == (value if found is not None else None),
            ),
        ]
    ),
]


def combined(inner: st.SearchStrategy[Evaluated]) -> st.SearchStrategy[Evaluated]:
    def joined(parts: list[Evaluated], operator: str, every: Callable[[list[bool]], bool]) -> Evaluated:
        text = f" {operator}\t".join(f"({text} )" for text, _ in parts)
        return text, lambda message: every([test(message) for _, test in parts])

    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda parts: joined(parts, "AND", all)),
        several.map(lambda parts: joined(parts, "OR", any)),
        inner.map(lambda part: (f"NOT ({part[0]})", lambda message: not part[1](message))),
        inner.map(lambda part: (f"-( {part[0]})", lambda message: not part[1](message))),
    )


EXPRESSIONS = st.recursive(st.sampled_from(COMPARISONS), combined, max_leaves=6)
MESSAGES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@given(expression=EXPRESSIONS.filter(lambda one: len(one[0].encode()) <= 256), messages=st.lists(MESSAGES, min_size=1))
def test_any_expression_means_what_its_parts_mean(expression: Evaluated, messages: list[dict[str, str]]) -> None:
    text, meant = expression
    passes = parse_filter(text)
    assert [passes(message) for message in messages] == [meant(message) for message in messages]


def filtered(text: str, name: str = "filtered", faults: Faults | None = None) -> PubSubModel:
    """A model with a subscription without a filter and one with it."""
    model = a_model(faults)
    config = a_subscription(name, retain_acked_messages=True)
    config.filter = text
    model.create_subscription(config, START)
    return model


@pytest.mark.parametrize("faults", [Faults(), Faults(visible_after=after(1) - START)])
def test_a_message_that_does_not_pass_is_acknowledged_for_that_subscription_alone(faults: Faults) -> None:
    model = filtered('attributes.region = "eu"', faults=faults)
    model.publish("topic", [plain("1", region="us"), plain("2", region="eu"), plain("3")], after(1))
    assert [one.message.data for one in model.pull("filtered", 10, after(5))] == [b"2"]
    assert [one.message.data for one in model.pull(BASE, 10, after(5))] == [b"1", b"2", b"3"]
    other = filtered('attributes.region = "eu"', faults=faults)
    other.publish("topic", [plain("1", region="us")], after(1))
    assert other.oldest_unacked("filtered", after(5)) is None


def test_a_subscription_with_a_filter_that_is_not_one_is_not_created() -> None:
    with pytest.raises(Invalid, match="at character 1"):
        filtered("region = eu")
