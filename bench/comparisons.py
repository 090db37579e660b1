"""The comparisons of bench/run. Each is a function of a Node and the number of rounds, and yields Comparisons."""

import json
import os
import pathlib
import shutil
import subprocess

import attach
import machine
import node as nodes
from report import Comparison, Series, rate

HUGE = 2 << 20
FIO_DEPTH = 32
FIO_BUFFERS = 2 * FIO_DEPTH * HUGE


def cold_fill(node, rounds):
    """Filling from disk, hashed, against the slower of reading with fio and populating as much memory. The limit is the
    same with fio's buffers in memory of the daemon's kind: its own are small pages, which read slower than the disk."""
    if not shutil.which("fio"):
        raise machine.Unavailable("fio is not installed (scripts/setup installs it)")
    nbytes = node.source.stat().st_size
    notes = []

    def fill():
        probe = json.loads(node.run("wcache-fill-probe", node.source))
        notes[:] = [f"fill_path {probe['fill_path']}", f"memory {probe['memory']}", f"pages {probe['pages']}"]
        return probe["seconds"], probe["pages"]

    _, pages = fill()  # warms up, and says which memory to compare to
    memory = node.tmpfs(pages)
    ways = {"fill": lambda: fill()[0],
            "populate": lambda: json.loads(node.run("wcache-bench", "populate", memory, str(nbytes)))["seconds"],
            "fio 1 MiB": lambda: fio_seconds(node.source, "1M"),
            "fio 2 MiB": lambda: fio_seconds(node.source, "2M"),
            "fio 1 MiB into our pages": lambda: fio_seconds(node.source, "1M", memory),
            "fio 2 MiB into our pages": lambda: fio_seconds(node.source, "2M", memory)}
    seconds = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways)[turn % len(ways):] + list(ways)[:turn % len(ways)]:
            machine.drop_caches()
            node.run("wcache-bench", "use-memory", str(nbytes))
            seconds[name].append(ways[name]())
    notes += [f"{name}: {rate(nbytes, seconds[name])}" for name in ways]

    def slower(*of_fio):
        """Round by round the slower of the disk, as the better of fio's block sizes reads it, and populating."""
        disk = [min(pair) for pair in zip(*(seconds[name] for name in of_fio))]
        return [max(pair) for pair in zip(disk, seconds["populate"])]

    limit = slower("fio 1 MiB into our pages", "fio 2 MiB into our pages")
    by_disk = sum(a > b for a, b in zip(limit, seconds["populate"]))
    yield Comparison("cold fill, hashed", Series("wcache-fill-probe", seconds["fill"]),
                     Series("slower of fio and populating", slower("fio 1 MiB", "fio 2 MiB")), nbytes, 0.8,
                     limit=Series("slower of fio into our pages and populating", limit), notes=notes,
                     limit_text="disk" if 2 * by_disk > rounds else "memory")


def fio_seconds(path, block, memory=None):
    """Seconds of a direct read of the file; into a file of the tmpfs `memory`, else into what fio allocates."""
    words = ["fio", "--name=read", f"--filename={path}", "--readonly", "--rw=read", f"--bs={block}", "--direct=1",
             "--ioengine=io_uring", f"--iodepth={FIO_DEPTH}", "--output-format=json"]
    if not memory:
        report = json.loads(nodes.command(*words))
    else:
        buffers = memory / "fio-buffers"
        with open(buffers, "xb") as file:
            os.truncate(file.fileno(), FIO_BUFFERS)  # fio does not; its own use is a little more than depth x block
            os.posix_fallocate(file.fileno(), 0, FIO_BUFFERS)
        try:
            report = json.loads(nodes.command(*words, f"--iomem=mmapshared:{buffers}"))
        finally:
            buffers.unlink()
    return path.stat().st_size / report["jobs"][0]["read"]["bw_bytes"]


def warm_read(node, rounds):
    """read(2) of the whole file in blocks of 4 MiB."""
    return beside_tmpfs(node, rounds, "read", "warm read(2)", "the kernel's copy out of a tmpfs")


def first_touch(node, rounds):
    """mmap of the whole file and a byte of each page."""
    return beside_tmpfs(node, rounds, "touch", "first touch of a mapping", "the kernel's faults in a tmpfs")


def beside_tmpfs(node, rounds, mode, name, limit):
    node.require_passthrough()
    nbytes = node.source.stat().st_size if mode == "read" else None
    (ours, against), huge = node.timed(mode, rounds, node.mounted, node.tmpfs_file)
    notes = [f"{h // HUGE} entries of 2 MiB in the {where}" for h, where in zip(huge, ("mount", "tmpfs")) if h]
    yield Comparison(name, Series("mount", ours), Series(f"tmpfs, {node.pages} pages", against),
                     nbytes, 0.95, limit_text=limit, notes=notes)


def load_safetensors(node, rounds):
    """safetensors load_file and a byte of each page, from the mount and from the page cache; a tmpfs is the limit.
    For torch it maps; for numpy it copies every tensor, which leaves nothing to gain and has no goal. The page cache
    is as it may be: in pieces of 128 KiB, and as this machine's read-ahead makes it."""
    venv = pathlib.Path(os.environ.get("WCACHE_ENGINES_VENV") or nodes.REPO / ".venv" / "engines")
    python = venv / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import safetensors"], check=False).returncode:
        raise machine.Unavailable(f"no safetensors in {venv}: run tests/engines/setup --only safetensors --only torch")
    found = json.loads(nodes.command(python, pathlib.Path(__file__).with_name("load_safetensors.py"), str(rounds),
                                     node.mounted, node.tmpfs_file, node.small_folios, node.source))
    ours, limit, *caches = found["seconds"]
    maps = found["library"] == "torch"
    read_ahead = f"read-ahead of {machine.read_ahead_kib(node.disk)} KiB"
    for cache, how, huge in zip(caches, ("pieces of 128 KiB", read_ahead), found["huge_nbytes"][2:]):
        yield Comparison("safetensors load_file + touch" + ("" if maps else ", numpy (copies)"),
                         Series("mount", ours), Series(f"page cache, {how}", cache), goal=10 if maps else None,
                         limit=Series(f"tmpfs, {node.pages} pages", limit), limit_text="the same from a tmpfs",
                         notes=[f"{huge // HUGE} entries of 2 MiB in the page cache's mapping"])


def calls(node, rounds):
    """Calls on a weight file, and on the file of a file system that does nothing."""
    names = {"getxattr": "getxattr", "stat": "stat, in the kernel's cache", "stat-forced": "stat, asked of the server",
             "open": "open and close"}
    for mode, name in names.items():
        (ours, against), _ = node.timed(mode, rounds, node.mounted, node.null_file)
        yield Comparison(name, Series("wcachefs", ours), Series("null file system", against),
                         limit_text="kernel and libfuse")


def no_passthrough(node, rounds):
    """The same memory through a second mount that answers reads itself; passthrough is the limit."""
    node.require_passthrough()
    for mode, name in {"read": "read(2)", "touch-dropped": "first touch of a mapping"}.items():
        (ours, against), _ = node.timed(mode, rounds, node.without_passthrough, node.mounted)
        yield Comparison(f"{name} without passthrough", Series("mount, no_passthrough", ours),
                         Series("mount, passthrough", against),
                         node.source.stat().st_size if mode == "read" else None, limit_text="passthrough")


ALL = {"cold-fill": (cold_fill, 7), "warm-read": (warm_read, 21), "first-touch": (first_touch, 21),
       "load-safetensors": (load_safetensors, 11), "calls": (calls, 15), "no-passthrough": (no_passthrough, 7),
       "attach": (attach.attach, 301), "attach-fake-device": (attach.attach_fake_device, 301)}
QUICK_ROUNDS = 3


def run(name, node, quick):
    function, rounds = ALL[name]
    return list(function(node, QUICK_ROUNDS if quick else rounds))
