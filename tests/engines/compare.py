"""What the comparisons share: each loads a model from --disk and from --mounted with a real engine and compares."""

import argparse
import os
import sys


def arguments(description, *more, pairs=False):
    """Parses --disk and --mounted (with `pairs` lists, given again for each model) and the options named in `more`."""
    action = "append" if pairs else "store"
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--disk", required=True, action=action, metavar="PATH", help="the checkpoint")
    parser.add_argument("--mounted", required=True, action=action, metavar="PATH", help="the same as the mount shows it")
    for name in more:
        parser.add_argument(name)
    return parser.parse_args()


def check(condition, what):
    """Ends the comparison with what differs."""
    if not condition:
        sys.exit(f"differs: {what}")


def equal(disk, mounted, what):
    check(disk == mounted, f"{what}: disk {str(disk)[:300]}, mounted {str(mounted)[:300]}")


def check_mapped(path, what="weights"):
    """The process has a file below `path` mapped: the engine took its bytes from there and from nowhere else."""
    root = os.path.realpath(path)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        files = {line.split(maxsplit=5)[5].strip() for line in maps if line.count(" ") >= 5 and "/" in line}
    check(any(f == root or f.startswith(root + "/") for f in files), f"{what} are not mapped from {root}")
