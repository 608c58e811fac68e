"""How a batch is shared out among devices: decided here, for plans and engines alike."""

from __future__ import annotations


def split(count: int, parts: int, part: int) -> slice:
    """Part `part` of `count` things cut into `parts` runs whose sizes differ by one at the most; it may be empty."""
    size, longer = divmod(count, parts)
    start = part * size + min(part, longer)
    return slice(start, start + size + (part < longer))


def share_sizes(count: int, parts: int) -> list[int]:
    """7 samples on 3 devices -> [3, 2, 2]."""
    cuts = [split(count, parts, part) for part in range(parts)]
    return [cut.stop - cut.start for cut in cuts]


def alike_shares(count: int, parts: int) -> list[tuple[int, int, int]]:
    """(first part, how many alike, samples of each): 7 samples on 3 devices -> [(0, 1, 3), (1, 2, 2)]."""
    size, longer = divmod(count, parts)
    return [each for each in ((0, longer, size + 1), (longer, parts - longer, size)) if each[1]]
