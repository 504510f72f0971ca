"""Pub/Sub's filter language, as Google documents it under "Filter messages from a subscription".

    expression = term { AND term } | term { OR term }
    term       = [ NOT | - ] ( comparison | "(" expression ")" )
    comparison = attributes:KEY | attributes.KEY = STRING | attributes.KEY != STRING | hasPrefix(attributes.KEY, STRING)

A key consists of letters, digits, hyphens and underscores, or is a string. A string is in double quotes. Operators are
in capitals. Combining AND with OR requires parentheses. Syntax that Google does not document is refused, so
Google's service accepts every filter that is accepted here.
"""

import re
from collections.abc import Callable, Mapping

from tidemark.local.emulator.refusals import Invalid

BYTES = 256
"""Maximum length of a filter. Google documents: "The maximum length of a filter is 256 bytes"."""

Filter = Callable[[Mapping[str, str]], bool]
"""A function that returns whether a message with these attributes passes the filter."""

SPACE = r"[ \t\r\n]*"
NEGATION = re.compile(rf"NOT(?=[ \t\r\n(]){SPACE}|-")
OPERATOR = re.compile(rf"(AND|OR)(?=[ \t\r\n(-]){SPACE}")
OPENED, CLOSED, COMMA = (re.compile(rf"{mark}{SPACE}") for mark in (r"\(", r"\)", ","))
HAS, OF, PREFIX = re.compile("attributes:"), re.compile(r"attributes\."), re.compile(rf"hasPrefix\({SPACE}")
EQUALITY = re.compile(rf"(!?=){SPACE}")
KEY = re.compile(rf"([A-Za-z0-9_-]+){SPACE}")
ESCAPE = r"""\\(u(?![Dd][89A-Fa-f])[0-9A-Fa-f]{4}|x[0-7][0-9A-Fa-f]|[01][0-7]{2}|[abfnrtv\\"'])"""
"""Matches an escape in a string: Unicode, hexadecimal, octal or a single character. Hexadecimal and octal escapes are
limited to ASCII, because Google does not document whether larger values are bytes or characters."""

STRING = re.compile(rf'"((?:[^"\\\x00-\x1f\x7f]|{ESCAPE})*)"{SPACE}')
A_STRING = r"a string in double quotes, with escapes such as \", \\, \n or \u00E9"
MEANT = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


def parse_filter(text: str) -> Filter:
    """Parse a filter. Raises Invalid if it is too long or cannot be parsed; in the latter case, the error names the
    position in the filter."""
    if (size := len(text.encode())) > BYTES:
        raise Invalid(f"the filter is {size} bytes long; the maximum is {BYTES} bytes")
    parser = _Parser(text)
    passes = parser.expression()
    if parser.at < len(text):
        raise parser.refusal("AND, OR or the end")
    return passes


class _Parser:
    """Parses a filter from left to right. `at` is the position. Each method also consumes the whitespace after the text
    that it reads."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._take(re.compile(SPACE))

    def refusal(self, wanted: str) -> Invalid:
        found = repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end"
        return Invalid(f"the filter {self.text!r}, at character {self.at + 1}: expected {wanted}; found {found}")

    def expression(self) -> Filter:
        terms, joined = [self._term()], ""
        while found := OPERATOR.match(self.text, self.at):
            if joined not in ("", found[1]):
                raise self.refusal(f"{joined}, or parentheses around the terms joined by {found[1]}")
            joined, self.at = found[1], found.end()
            terms.append(self._term())
        every = all if joined == "AND" else any
        return lambda attributes: every(term(attributes) for term in terms)

    def _term(self) -> Filter:
        is_negated = self._take(NEGATION) is not None
        if self._take(OPENED):
            term = self.expression()
            self._need(CLOSED, ")")
        else:
            term = self._comparison()
        return (lambda attributes: not term(attributes)) if is_negated else term

    def _comparison(self) -> Filter:
        if self._take(HAS):
            key = self._key()
            return lambda attributes: key in attributes
        if self._take(PREFIX):
            self._need(OF, "attributes.KEY")
            key = self._key()
            self._need(COMMA, "a comma")
            value = self._string(A_STRING)
            self._need(CLOSED, ")")
            return lambda attributes: key in attributes and attributes[key].startswith(value)
        self._need(OF, "attributes:KEY, attributes.KEY, hasPrefix(attributes.KEY, …) or a parenthesis")
        key = self._key()
        is_equal = self._need(EQUALITY, "= or !=")[1] == "="
        value = self._string(A_STRING)
        # `!=` is documented as "without the attribute and the value": a message without the attribute passes.
        return lambda attributes: (key in attributes and attributes[key] == value) == is_equal

    def _key(self) -> str:
        found = self._take(KEY)
        return found[1] if found else self._string("a key of letters, digits, - and _, or in double quotes")

    def _string(self, wanted: str) -> str:
        return re.sub(ESCAPE, lambda found: _escaped_character(found[1]), self._need(STRING, wanted)[1])

    def _take(self, token: re.Pattern[str]) -> re.Match[str] | None:
        if found := token.match(self.text, self.at):
            self.at = found.end()
        return found

    def _need(self, token: re.Pattern[str], wanted: str) -> re.Match[str]:
        if found := self._take(token):
            return found
        raise self.refusal(wanted)


def _escaped_character(escape: str) -> str:
    """Return the character that an escape stands for. `escape` is given without its backslash."""
    if escape[0] in "ux":
        return chr(int(escape[1:], 16))
    return chr(int(escape, 8)) if escape[0].isdigit() else MEANT.get(escape, escape)
