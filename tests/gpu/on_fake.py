#!/usr/bin/env python3
"""on_fake.py LIBRARY PROGRAM: runs a test program of label gpu on the fake driver, where none of its cases may be skipped."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fake_cuda"))
from fake_gpu import FakeGpu  # noqa: E402


def main():
    library, program = sys.argv[1:]
    with FakeGpu(library) as gpu:
        done = subprocess.run([program], env=gpu.environment(), capture_output=True, text=True)
        print(done.stdout + done.stderr)
        if done.returncode != 0 or "[  SKIPPED ]" in done.stdout or "[  PASSED  ]" not in done.stdout:
            sys.exit("a case failed or was skipped")
        if gpu.errors() or gpu.used_bytes(0) or gpu.contexts():
            sys.exit(f"left: {gpu.errors()} {gpu.used_bytes(0)} bytes, contexts {gpu.contexts()}")


if __name__ == "__main__":
    main()
