"""Windows as texts, in the config of a run and in its tag: `first..last`, by their keys."""

from collections.abc import Iterable, Mapping, Sequence

from tidemark.pipeline.orchestrator.names import TO, WINDOWS
from tidemark.pipeline.windows import Window, Windowing, runs_of_neighbours


def stretch_texts(windows: Iterable[Window]) -> list[str]:
    """Windows as keys, in order; neighbours together, as `first..last`."""
    return [first if first == last else f"{first}{TO}{last}" for first, last in stretch_ends(windows)]


def stretch_ends(windows: Iterable[Window]) -> list[tuple[str, str]]:
    """The keys of the first and the last window of each stretch of neighbours, in order."""
    return [(stretch[0].key, stretch[-1].key) for stretch in runs_of_neighbours(windows)]


def windows_tag(windows: Sequence[Window]) -> str:
    """Windows in order, as a row of the UI has room for: the first, what differs in the last, such as its time of day,
    and how many there are. Between the two some may be missing."""
    first, last = windows[0].key, windows[-1].key
    if first == last:
        return first
    differs = next(at for at, signs in enumerate(zip(first, last, strict=True)) if len(set(signs)) == 2)
    begins = 1 + max(first.rfind(sign, 0, differs) for sign in "-T")
    return f"{first}{TO}{last[begins:]} ({len(windows)})"


def stretch_named(text: str, windowing: Windowing) -> range:
    """The numbers of the windows of such a text, or of a tag. Raises ValueError."""
    first, _, last = text.partition(" ")[0].partition(TO)
    last = first[: max(0, len(first) - len(last))] + last
    numbers = [windowing.number_of(windowing.named(key).start) for key in (first, last)]
    return range(numbers[0], numbers[1] + 1)


def stretches_asked(texts: Iterable[str], tags: Mapping[str, str], windowing: Windowing) -> list[range]:
    """The windows that a run is to compute: those of its config, or else of its tag. Raises ValueError."""
    in_tags = [tags[WINDOWS]] if WINDOWS in tags else []
    return [stretch_named(text, windowing) for text in list(texts) or in_tags]


def windows_of(stretches: Iterable[range], windowing: Windowing) -> list[Window]:
    """The windows with these numbers, each once, in order."""
    return [windowing.numbered(number) for number in sorted({one for each in stretches for one in each})]
