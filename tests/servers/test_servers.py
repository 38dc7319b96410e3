"""Test that forked and spawned workers compute correct results and leave no resources."""

import random
import sys
import tempfile

import pytest

from tests.servers import servers

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Use separate cache and temporary folders, because the tests look for remaining files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # tempfile reads TMPDIR again


@pytest.mark.parametrize("name", servers.SERVERS)
def test_workers_compute_correct_results(name):
    outcome = servers.SERVERS[name](random.Random(0))
    assert outcome.answers
    assert not outcome.problems


@pytest.mark.slow
def test_servers_leave_no_resources():
    outcome = servers.run(60, 1, list(servers.SERVERS), print)
    assert not outcome.problems
