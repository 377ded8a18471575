"""The arithmetic of the digest lanes, against plain Python integers."""

from __future__ import annotations

import numpy as np

from weightstore.codec.lanes import (
    LANE_COUNT,
    LANE_FACTORS,
    LANE_OFFSETS,
    MASK_64,
    add_lanes,
    index_words,
    mix,
    subtract_lanes,
)

# The first outputs of splitmix64 seeded with 0: a published sequence, so that the mixer is
# the known one and not merely a mixer.
SPLITMIX64_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX64_OUTPUTS = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def plain_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK_64
    return word ^ (word >> 31)


def test_mix_is_the_finaliser_of_splitmix64() -> None:
    states = [(SPLITMIX64_GAMMA * count) & MASK_64 for count in (1, 2, 3)]
    assert mix(np.array(states, dtype=np.uint64)).tolist() == SPLITMIX64_OUTPUTS


def test_mix_leaves_its_argument_alone() -> None:
    words = np.array([1, 2, 3], dtype=np.uint64)
    mix(words)
    assert words.tolist() == [1, 2, 3]


def test_index_words_agree_with_plain_integers_up_to_the_last_index() -> None:
    indices = [0, 1, 2**32, 2**63, MASK_64]
    for lane in range(LANE_COUNT):
        expected = [
            plain_mix((index * LANE_FACTORS[lane] + LANE_OFFSETS[lane]) & MASK_64)
            for index in indices
        ]
        found = index_words(np.array(indices, dtype=np.uint64), lane)
        assert found.tolist() == expected


def test_factors_are_odd_and_differ_so_that_no_index_is_lost() -> None:
    assert all(factor % 2 == 1 for factor in LANE_FACTORS)
    assert len(set(LANE_FACTORS)) == len(set(LANE_OFFSETS)) == LANE_COUNT


def test_lanes_add_and_subtract_modulo_two_to_the_64() -> None:
    high, low = (MASK_64, 5), (2, 7)
    assert add_lanes(high, low) == (1, 12)
    assert subtract_lanes(low, high) == (3, 2)
    assert subtract_lanes((0, 0), (1, 1)) == (MASK_64, MASK_64)
    assert subtract_lanes(add_lanes(high, low), low) == high
