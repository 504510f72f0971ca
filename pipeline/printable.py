"""Text from outside as text that can be shown: the one place where control characters are written out."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that is not shown as itself written out: ESC becomes `\x1b`, and U+202E, which
    turns the writing direction round, `\u202e`. Those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)
