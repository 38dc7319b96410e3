"""A test double of ``docker`` and ``podman`` that records its calls and runs compiler_double.py.

The environment variable ``ENGINE_DOUBLE`` is the path of a folder. Its file ``engine.json``
contains the images of the double, and the behavior of its commands. The double appends its
arguments to ``calls.jsonl``. For a run, it writes the names of its environment variables to
``environment.json``. A run fails if an argument is a path outside of the mounted folder.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["ENGINE_DOUBLE"])
HERE = Path(__file__).parent
FLAGS = ("rm", "sig-proxy=false", "stop-signal=KILL", "pull=never", "network=none")
WITH_VALUE = ("user", "mount", "workdir", "entrypoint", "name", "memory")


def fail(code: int, message: str) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def main(words: list[str]) -> None:
    behaviour = json.loads((STATE / "engine.json").read_text())
    with open(STATE / "calls.jsonl", "a") as file:
        file.write(json.dumps(words) + "\n")
    if "down" in behaviour:
        fail(1, behaviour["down"])
    if words[:2] == ["image", "inspect"]:
        found = behaviour["images"].get(words[-1])
        if found is None:
            fail(1, f"Error: No such image: {words[-1]}")
        print(found)
    elif words[0] == "info":
        print(behaviour.get("security", "[name=seccomp,profile=builtin]"))
    elif words[0] == "pull":
        print(f"pulled {words[-1]}")
    elif words[0] == "rm":
        (STATE / "removed").write_text(words[-1])
    elif words[0] == "run":
        run(words[1:], behaviour)
    else:
        fail(125, f"unknown command {words}")


def run(words: list[str], behaviour: dict) -> None:
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        word = words.pop(0)[2:]
        name, _, value = word.partition("=")
        if word not in FLAGS and name not in WITH_VALUE:
            fail(125, f"unknown flag: --{name}")
        options[name] = value
    image = words.pop(0)
    if image not in behaviour["images"].values():
        fail(125, f"Unable to find image '{image}' locally")
    if "sleep" in behaviour:
        time.sleep(behaviour["sleep"])
    if "kill" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "exit" in behaviour:
        fail(behaviour["exit"], behaviour.get("stderr", ""))
    mount = dict(field.split("=", 1) for field in next(csv.reader([options["mount"]])))
    outside = mount.pop("source")
    if mount != {"type": "bind", "target": outside} or options["workdir"] != outside:
        fail(125, "the folder is mounted elsewhere")
    for word in words:
        if word.startswith("/") and not word.startswith(f"{outside}/"):
            fail(3, f"{word} is not mounted")
    (STATE / "environment.json").write_text(json.dumps(sorted(os.environ)))
    command = [sys.executable, str(HERE / "compiler_double.py"), *words]
    environment = {k: os.environ[k] for k in ("PATH",)}  # containers inherit no other variables
    raise SystemExit(subprocess.run(command, cwd=options["workdir"], env=environment).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
