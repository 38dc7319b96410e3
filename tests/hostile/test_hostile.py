from tests.hostile.net import CORPUS, run


def test_hostile_files() -> None:
    """Every file is optimized, or refused with a message that contains the path of the file.

    `python -m tests.hostile` checks more files.
    """
    texts: list[str] = []
    found = run(0, range(-len(CORPUS), 40), all_ops=False, show=texts.append)
    assert not found.classes, "\n".join(texts)
    assert found.checked > 40, found.discarded
    assert found.reached["steps"]["-O1: done"] and found.reached["steps"]["-O1: refused"]
    assert found.reached["steps"]["judge: same"]
