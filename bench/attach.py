"""How long an engine takes to attach by libwcache, by the number of tensors: once in host memory and once on a device of
the fake driver of the tests, which shows what our own code adds and nothing of what a GPU's driver takes."""

import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import machine
import node as nodes
from report import Comparison, Series

sys.path.append(str(nodes.REPO / "tests" / "fake_cuda"))
import fake_gpu  # noqa: E402

COUNTS = (10, 1_000, 100_000)
NBYTES = 64 << 20  # of each model's tensors: more of them are smaller ones


def attach(node, rounds):
    """Opening an entry in host memory and being told where a tensor in the middle of its table is, beside an entry of ten
    tensors."""
    with contextlib.ExitStack() as stack:
        yield from compare(*serve(stack, node, "host", ["--device", "host"], {}), node, rounds, "")


def attach_fake_device(node, rounds):
    """The same on a device of the fake driver."""
    library = node.programs.parent / "tests" / "libwcache_fake_cuda.so"
    if not library.exists():
        raise machine.Unavailable(f"no {library}: build with WCACHE_TESTS")
    with contextlib.ExitStack() as stack:
        gpu = stack.enter_context(fake_gpu.FakeGpu(str(library), {"devices": 1, "device.0.memory": 4 * NBYTES}))
        served = serve(stack, node, "fake", ["--device", "cuda"], gpu.environment())
        yield from compare(*served, node, rounds, " on a FAKE device")


def compare(run_dir, entries, environment, node, rounds, where):
    done = subprocess.run([node.programs / "wcache-attach-bench", str(rounds), run_dir, *entries], env=environment,
                          capture_output=True, text=True, check=False, timeout=nodes.PATIENCE)
    if done.returncode:
        raise RuntimeError(f"wcache-attach-bench ended with {done.returncode}: {done.stderr.strip()}")
    few, *more = ([value / 1e6 for value in series] for series in json.loads(done.stdout)["microseconds"])
    for count, seconds in zip(COUNTS[1:], more):
        yield Comparison(f"attach, {count:,} tensors{where}", Series(f"{count:,} tensors", seconds),
                         Series(f"{COUNTS[0]} tensors", few), goal=0.9, limit_text=f"{COUNTS[0]} tensors")


def model_of(node, count):
    directory = node.disk / f"tensors-{count}"
    if directory.exists():
        return directory
    directory.mkdir()
    (directory / "config.json").write_text("{}", encoding="ascii")
    nbytes = NBYTES // count // 2 * 2
    tensors = [nodes.safetensors_writer.Tensor(f"layers.{i:06}.weight", "F16", (nbytes // 2,),
                                               functools.partial(nodes.values.random_bytes, nbytes, i))
               for i in range(count)]
    nodes.safetensors_writer.write(directory / "model.safetensors", tensors)
    return directory


def serve(stack, node, name, options, environment):
    """Run directory, fingerprints and environment of daemons that serve a model of each count, until the stack ends."""
    run_dir = node.work / f"attach-{name}"
    run_dir.mkdir(mode=0o700)
    environment = {**os.environ, **environment, "WCACHE_CACHE_DIR": str(run_dir / "cache")}
    entries = []
    for model in (model_of(node, count) for count in COUNTS):
        log = stack.enter_context(open(node.work / f"{name}-{model.name}.log", "w+", encoding="utf-8"))
        process = subprocess.Popen([node.programs / "wcache", "preload", model, "--run-dir", run_dir, "--no-mount", *options],
                                   env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        stack.callback(end, process)
        word, _, fingerprint, _ = (process.stdout.readline().split(" ", 3) + 4 * [""])[:4]
        if word != "READY":
            raise machine.Unavailable(f"preload {' '.join(options)}: {pathlib.Path(log.name).read_text().strip()}")
        entries.append(fingerprint)
    return run_dir, entries, environment


def end(process):
    process.send_signal(signal.SIGTERM)
    process.wait(nodes.WAIT)
    process.stdout.close()
