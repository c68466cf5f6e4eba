"""A short run of bench/fuzz.py: broken files give a model or one clear sentence."""

from bench.fuzz import run


def test_broken_files() -> None:
    counts, found = run(800, seed=1, show=lambda line: None)
    assert found == {}
    assert sum(count for name, count in counts.items() if name.endswith("refused")) > 400
