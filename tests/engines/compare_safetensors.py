#!/usr/bin/env python3
"""safetensors: load_file, and safe_open with slices, give the same bytes from the mount as from disk."""

import pathlib
import random

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from compare import arguments, check, check_mapped, equal


def raw(tensor):
    """A tensor's bytes, whatever its type."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def value(f, name):
    """What safe_open gives for a tensor: type, shape and bytes, or the error for a type that torch does not have."""
    try:
        t = f.get_tensor(name)
        return str(t.dtype), tuple(t.shape), raw(t)
    except (SafetensorError, AttributeError) as e:
        return type(e).__name__, str(e)


def random_slice(rng, shape):
    """One range of every dimension."""
    ends = [sorted(rng.sample(range(n + 1), 2)) if n else [0, 0] for n in shape]
    return tuple(slice(*e) for e in ends)


def compare_file(disk, mounted):
    rng = random.Random(disk.name)
    with safe_open(disk, "pt") as a, safe_open(mounted, "pt") as b:
        equal(a.metadata(), b.metadata(), f"{disk.name}: metadata")
        names = list(a.keys())
        equal(names, list(b.keys()), f"{disk.name}: tensor names")
        errors = 0
        for name in names:
            one, other = value(a, name), value(b, name)
            equal(one, other, f"{disk.name}: {name}")
            errors += len(one) == 2
        check(errors < len(names), f"{disk.name}: no tensor could be read at all")
        for name in rng.sample(names, min(len(names), 200)):
            if len(value(a, name)) == 2:
                continue
            shape = a.get_slice(name).get_shape()
            if shape and "float4" not in value(a, name)[0]:
                part = random_slice(rng, shape)
                equal(raw(a.get_slice(name)[part]), raw(b.get_slice(name)[part]), f"{disk.name}: {name}{part}")
        check_mapped(mounted)
    if not errors:
        one, other = load_file(disk), load_file(mounted)
        equal(sorted(one), sorted(other), f"{disk.name}: names of load_file")
        for name, tensor in one.items():
            equal(raw(tensor), raw(other[name]), f"{disk.name}: load_file: {name}")
    return len(names)


def compare_directory(disk, mounted):
    files = sorted(p.name for p in disk.glob("*.safetensors"))
    check(files, f"{disk}: no safetensors files")
    equal(files, sorted(p.name for p in mounted.glob("*.safetensors")), f"{disk}: files")
    count = sum(compare_file(disk / name, mounted / name) for name in files)
    print(f"safetensors: {disk.name}: {len(files)} files, {count} tensors are the same", flush=True)


def main():
    args = arguments(__doc__, pairs=True)
    for disk, mounted in zip(args.disk, args.mounted, strict=True):
        compare_directory(pathlib.Path(disk), pathlib.Path(mounted))


if __name__ == "__main__":
    main()
