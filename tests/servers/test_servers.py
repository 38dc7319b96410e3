"""Test that forked and spawned workers compute correct results and leave no resources."""

import random
import sys

import pytest

from tests.servers import servers

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", servers.SERVERS)
def test_workers_compute_correct_results(name):
    outcome = servers.SERVERS[name](random.Random(0))
    assert outcome.answers
    assert not outcome.problems


@pytest.mark.slow
def test_servers_leave_no_resources():
    outcome = servers.run(60, 1, list(servers.SERVERS), print)
    assert not outcome.problems
