from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from onnxfold.runtime.sessions.cache import FoldCache, Folded


def folded(nbytes):
    return Folded({}, nbytes)


def test_least_recently_used_goes_first():
    cache = FoldCache(max_bytes=30)
    for key in "abc":
        cache.get(key, lambda: folded(10))
    cache.get("a", lambda: pytest.fail("it is there"))
    cache.get("d", lambda: folded(10))
    made = []
    for key in "acdb":
        cache.get(key, lambda key=key: made.append(key) or folded(10))
    assert made == ["b"]
    assert cache.statistics().bytes == 30
    cache.clear()
    assert cache.statistics().bytes == 0


def test_what_is_larger_than_the_cache_drives_nothing_out():
    cache = FoldCache(max_bytes=30)
    cache.get("a", lambda: folded(10))
    cache.get("large", lambda: folded(31))
    assert cache.statistics().evictions == 0
    assert cache.statistics().too_large == 1
    cache.get("a", lambda: pytest.fail("it is there"))


def test_a_key_is_made_by_one_thread():
    cache = FoldCache()
    calls = []
    gate = threading.Event()

    def make():
        calls.append(1)
        gate.wait(5)
        return folded(1)

    with ThreadPoolExecutor(16) as pool:
        results = [pool.submit(cache.get, "k", make) for _ in range(16)]
        gate.set()
        assert len({id(r.result()) for r in results}) == 1
    assert len(calls) == 1
    assert cache.statistics().misses == 1 and cache.statistics().hits == 15


def test_an_exception_is_not_kept():
    cache = FoldCache()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("k", fail)
    assert cache.get("k", lambda: folded(3)).nbytes == 3
