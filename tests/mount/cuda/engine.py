#!/usr/bin/env python3
"""engine.py ENTRY RUN-DIR [RANK]: attaches through the wcache package and answers words on its standard input, a line of
JSON each: at first, and for `read`, the SHA-256 of every tensor; for `open` the same through another attach. An error is
{"error": its reason}. It holds the entry until its input ends."""

import hashlib
import json
import pathlib
import sys
import os

sys.path.insert(0, str(pathlib.Path(os.environ["WCACHE_BIN_DIR"]).parent / "python"))
import wcache  # noqa: E402


def attach(entry, run_dir, rank=None):
    return wcache.open(entry, run_dir=run_dir, rank=None if rank is None else int(rank))


def read(model):
    return {name: hashlib.sha256(model.bytes(name)).hexdigest() for name in model}


def say(make):
    try:
        answer = make()
    except wcache.Error as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


def main():
    model = attach(*sys.argv[1:])
    say(lambda: read(model))
    for line in sys.stdin:
        if line.strip() == "open":
            def once_more():
                with attach(*sys.argv[1:]) as other:
                    return read(other)
            say(once_more)
        else:
            say(lambda: read(model))
    model.close()


if __name__ == "__main__":
    main()
