#!/usr/bin/env python3
"""Recomputes the digests and the key of an entry of the mount, independently of wcache's own code.

    recompute_key.py /mnt/wcache/target/<fingerprint> ...

Reads every file of the entry, hashes it as docs/formats.md says, and compares with .wcache/fingerprint.json,
.wcache/manifest.json and the directory's name. Prints what differs; the exit status is 0 when nothing does, else 1.
`--self-test` prints the digests of a few known inputs, which are the golden values of tests/unit/core/digest_test.cc.

Needs Python 3 and the package xxhash only.
"""

import argparse
import json
import os
import struct
import sys
from pathlib import Path

import xxhash

BLOCK = 1 << 20
RANKS_DIFFER = ("sharded", "published")


def xxh128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def read_blocks(file, nbytes):
    """The blocks of the next `nbytes` of a file."""
    while nbytes > 0:
        block = file.read(min(BLOCK, nbytes))
        if not block:
            raise ValueError("the file ends early")
        # A read before the end of a regular file is short only where it is interrupted; the digest needs whole blocks.
        while len(block) < min(BLOCK, nbytes):
            more = file.read(min(BLOCK, nbytes) - len(block))
            if not more:
                raise ValueError("the file ends early")
            block += more
        yield block
        nbytes -= len(block)


def segment_digest(file, nbytes) -> bytes:
    blocks = b"".join(xxh128(block) for block in read_blocks(file, nbytes))
    return xxh128(blocks + struct.pack("<Q", nbytes))


def segments_of(file_nbytes, places):
    """Where a file is cut: each tensor that has bytes, and what lies before, between and behind them."""
    segments, at = [], 0
    for offset, nbytes in sorted(place for place in places if place[1] > 0):
        if offset > at:
            segments.append((at, offset - at))
        segments.append((offset, nbytes))
        at = offset + nbytes
    if file_nbytes > at:
        segments.append((at, file_nbytes - at))
    return segments


def file_digests(file, segments):
    """The digest of a file and those of its segments, by (offset, nbytes)."""
    node, parts = bytearray(), {}
    for offset, nbytes in segments:
        file.seek(offset)
        parts[offset, nbytes] = segment_digest(file, nbytes)
        node += struct.pack("<QQ", offset, nbytes) + parts[offset, nbytes]
    return xxh128(bytes(node)).hex(), {where: digest.hex() for where, digest in parts.items()}


def raw_name(row, field="name") -> bytes:
    """A name as bytes: JSON shows bytes that are not UTF-8 in hex beside it."""
    return bytes.fromhex(row[field + "_hex"]) if field + "_hex" in row else row[field].encode()


def escape(name: bytes) -> bytes:
    return b"".join(b"%%%02X" % c if c < 0x20 or c in (0x25, 0x7F) else bytes([c]) for c in name)


def canonical_key(fields, files) -> bytes:
    lines = [f"wcache-key {fields['key']}", f"role {fields['role']}", f"layout {fields['layout']}"]
    if fields["layout"] in RANKS_DIFFER:
        lines.append(f"tp_size {fields['tp_size']}")
    text = "".join(line + "\n" for line in lines).encode()
    for row in sorted(files, key=raw_name):
        text += f"file {row['digest']} {row['nbytes']} ".encode() + escape(raw_name(row)) + b"\n"
    return text


def safetensors_tensors(path: Path):
    """name -> (dtype, shape, offset, nbytes), from the file's own header."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], t["shape"], 8 + size + t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0])
        for name, t in header.items()
    }


class Entry:
    def __init__(self, directory: Path):
        self.directory = directory
        self.fingerprint = json.loads((directory / ".wcache/fingerprint.json").read_bytes())
        self.manifest = json.loads((directory / ".wcache/manifest.json").read_bytes())
        self.complaints = []
        self.found = set()

    def expect(self, what, expected, found):
        if expected != found:
            self.complaints.append(f"{what}: {expected!r} expected, {found!r} found")

    def check_key(self):
        fields = self.fingerprint["fields"]
        key = xxh128(canonical_key(fields, self.fingerprint["files"])).hex()
        self.expect("key recomputed from fingerprint.json", self.fingerprint["fingerprint"], key)
        self.expect("name of the directory", self.directory.name, key)
        self.expect("role of the directory", self.directory.parent.name, fields["role"])
        self.expect("fingerprint in manifest.json", key, self.manifest["fingerprint"])

    def check_names(self):
        """The entry has the listed files and no others."""
        root = os.fsencode(self.directory)
        found = set()
        for place, directories, files in os.walk(root):
            if place == root:
                directories.remove(b".wcache")
            found.update(os.path.relpath(os.path.join(place, name), root) for name in files)
        listed = {raw_name(row) for row in self.fingerprint["files"]}
        self.expect("files beside those of fingerprint.json", [], sorted(found - listed))
        in_manifest = {raw_name(row): (row["nbytes"], row["digest"]) for row in self.manifest["files"]}
        in_key = {raw_name(row): (row["nbytes"], row["digest"]) for row in self.fingerprint["files"]}
        if self.fingerprint["fields"]["layout"] in RANKS_DIFFER:  # other ranks' files, and those of other nodes
            in_key = {name: row for name, row in in_key.items() if name in in_manifest}
            listed = set(in_manifest)
        self.expect("files of fingerprint.json that are not there", [], sorted(listed - found))
        self.expect("files of manifest.json", in_key, in_manifest)
        self.found = found

    def check_bytes(self):
        tensors, names = {}, {}
        for row in self.manifest["tensors"]:
            tensors.setdefault(raw_name(row, "file"), []).append(row)
            names.setdefault(row["name"], set()).add(raw_name(row, "file"))
        rows = {raw_name(row): row for row in self.manifest["files"]}
        for row in self.fingerprint["files"]:
            name = raw_name(row)
            if name not in self.found:
                continue  # told by check_names where it should be there
            shown = row["name"]
            path = Path(os.fsdecode(os.path.join(os.fsencode(self.directory), name)))
            self.expect(f"{shown}: size", row["nbytes"], path.stat().st_size)
            inside = tensors.get(name, [])
            places = [(t["offset"], t["nbytes"]) for t in inside]
            if name.endswith(b".safetensors"):
                own = safetensors_tensors(path)
                places = [t[2:] for t in own.values()]
                # A tensor that another file has too is in the manifest once; the file is cut at it all the same.
                own = {key: t for key, t in own.items() if key not in names or name in names[key]}
                said = {t["name"]: (t["dtype"], t["shape"], t["offset"], t["nbytes"]) for t in inside}
                if name in rows:
                    self.expect(f"{shown}: tensors", own, said)
            if name in rows:
                self.expect(f"{shown}: number of tensors", rows[name]["tensors"], len(inside))
            with path.open("rb") as file:
                digest, parts = file_digests(file, segments_of(row["nbytes"], places))
            self.expect(f"{shown}: digest", row["digest"], digest)
            nothing = xxh128(struct.pack("<Q", 0)).hex()
            for tensor in inside:
                where = tensor["offset"], tensor["nbytes"]
                self.expect(f"{tensor['name']}: digest", tensor["digest"], parts.get(where, nothing))

    def check(self):
        self.check_key()
        self.check_names()
        self.check_bytes()
        return self.complaints


def ramp(nbytes) -> bytes:
    return bytes((i * i + i // 256) & 0xFF for i in range(nbytes))


def self_test():
    import io

    def segment(data):
        return segment_digest(io.BytesIO(data), len(data)).hex()

    def whole(data, segments=None):
        return file_digests(io.BytesIO(data), segments or segments_of(len(data), []))[0]

    print("segment of nothing", segment(b""))
    print("segment abc", segment(b"abc"))
    print("segment of one block", segment(ramp(BLOCK)))
    print("segment of two blocks and a byte", segment(ramp(2 * BLOCK + 1)))
    print("file of nothing", whole(b""))
    print("file abc", whole(b"abc"))
    print("file cut in three", whole(ramp(BLOCK + 20), [(0, 10), (10, BLOCK + 3), (BLOCK + 13, 7)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("entry", nargs="*", type=Path, help="directory of an entry in the mount")
    parser.add_argument("--self-test", action="store_true", help="print the golden values of the unit tests")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    elif not arguments.entry:
        parser.error("an entry's directory is needed")
    failed = False
    for directory in arguments.entry:
        complaints = Entry(directory.resolve()).check()
        for complaint in complaints:
            print(f"{directory}: {complaint}")
        if not complaints:
            print(f"{directory}: key and digests recomputed, all equal")
        failed = failed or bool(complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
