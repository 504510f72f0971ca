"""Escapes control characters in text from outside before it is shown."""


def printable(text: str, keep: str = "") -> str:
    r"""Escape every non-printable character, except those in `keep`: ESC becomes `\x1b`; U+202E, which reverses the
    writing direction, becomes `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)
