#!/usr/bin/env python3
"""Makes vLLM write a model as a sharded checkpoint: files of its own for each tensor-parallel rank.

    save_sharded.py MODEL OUT TP
"""

import os
import pathlib
import shutil
import sys

import vllm_engine


def main():
    model, out, tp = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    out.mkdir()
    os.environ["WCACHE_TEST_SAVE_SHARDED"] = str(out)  # vllm_worker does it
    vllm_engine.run(model, tp)
    for path in model.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copy(path, out)


if __name__ == "__main__":
    main()
