"""Times safetensors' load_file and a byte of each page, of several files in turns. Run by the engines' Python.

usage: load_safetensors.py ROUNDS FILE...     prints {"library", "seconds": [[...], ...], "huge_nbytes": [...]}
"""

import json
import sys
import time


def library():
    """What engines use, torch, where it is there; numpy otherwise."""
    try:
        import torch
        from safetensors.torch import load_file
        return "torch", load_file, lambda t: t.view(torch.uint8).flatten()[::4096].sum().item()
    except ImportError:
        import numpy
        from safetensors.numpy import load_file
        return "numpy", load_file, lambda t: int(t.reshape(-1).view(numpy.uint8)[::4096].sum())


def warm(path):
    block = bytearray(4 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def huge_nbytes():
    """What of this process's mappings of files is mapped by 2 MiB entries."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("FilePmdMapped", "ShmemPmdMapped")))


def main():
    rounds, paths = int(sys.argv[1]), sys.argv[2:]
    name, load_file, touch = library()
    seconds, huge = [[] for _ in paths], [0 for _ in paths]
    for turn in range(-1, rounds):  # the first warms up and does not count
        for i in range(len(paths)):
            at = (i + turn + 1) % len(paths)
            warm(paths[at])
            began = time.perf_counter()
            tensors = load_file(paths[at])
            for tensor in tensors.values():
                touch(tensor)
            took = time.perf_counter() - began
            huge[at] = huge_nbytes()
            del tensors, tensor
            if turn >= 0:
                seconds[at].append(took)
    print(json.dumps({"library": name, "seconds": seconds, "huge_nbytes": huge}))


if __name__ == "__main__":
    main()
