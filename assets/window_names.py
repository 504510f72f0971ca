"""Windows as text in a run's config and its tag: `first..last`, by key."""

from collections.abc import Iterable, Mapping, Sequence

from tidemark.pipeline.orchestrator.names import TO, WINDOWS
from tidemark.pipeline.windows import Window, Windowing, runs_of_neighbours


def stretch_texts(windows: Iterable[Window]) -> list[str]:
    """Format windows as keys, in order, and stretches of neighbours as `first..last`."""
    return [first if first == last else f"{first}{TO}{last}" for first, last in stretch_ends(windows)]


def stretch_ends(windows: Iterable[Window]) -> list[tuple[str, str]]:
    """Return the keys of the first and the last window of each stretch of neighbours, in order."""
    return [(stretch[0].key, stretch[-1].key) for stretch in runs_of_neighbours(windows)]


def windows_tag(windows: Sequence[Window]) -> str:
    """Format windows that are in order for a row of the UI: the first key, the part of the last key that differs, such
    as its time of day, and the number of windows. There may be gaps between the two."""
    first, last = windows[0].key, windows[-1].key
    if first == last:
        return first
    differs = next(at for at, signs in enumerate(zip(first, last, strict=True)) if len(set(signs)) == 2)
    begins = 1 + max(first.rfind(sign, 0, differs) for sign in "-T")
    return f"{first}{TO}{last[begins:]} ({len(windows)})"


def stretch_named(text: str, windowing: Windowing) -> range:
    """Parse such a text, or a tag, into the numbers of its windows. Raises ValueError."""
    first, _, last = text.partition(" ")[0].partition(TO)
    last = first[: max(0, len(first) - len(last))] + last
    numbers = [windowing.number_of(windowing.named(key).start) for key in (first, last)]
    return range(numbers[0], numbers[1] + 1)


def stretches_asked(texts: Iterable[str], tags: Mapping[str, str], windowing: Windowing) -> list[range]:
    """Return the windows that a run has to compute: those of its config, else of its tag. Raises ValueError."""
    in_tags = [tags[WINDOWS]] if WINDOWS in tags else []
    return [stretch_named(text, windowing) for text in list(texts) or in_tags]


def windows_of(stretches: Iterable[range], windowing: Windowing) -> list[Window]:
    """Return the windows with these numbers, without duplicates, in order."""
    return [windowing.numbered(number) for number in sorted({one for each in stretches for one in each})]
