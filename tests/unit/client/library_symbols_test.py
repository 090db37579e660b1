#!/usr/bin/env python3
"""libwcache.so exports what wcache.h declares, under its version, and nothing else, and wcache(3) names all of it:
library_symbols_test.py LIBRARY"""

import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[3]


def main():
    listed = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True, stdout=subprocess.PIPE, text=True)
    exported = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] != "A"}
    header = (SOURCE / "client" / "wcache.h").read_text()
    declared = {f"{name}@@WCACHE_0" for name in re.findall(r"^WCACHE_API [^;]*?(wcache_\w+)\(", header, re.MULTILINE)}
    if len(declared) < 10 or exported != declared:
        sys.exit(f"exported only: {sorted(exported - declared)}; declared only: {sorted(declared - exported)}")
    page = re.sub(r"[\\\"]", "", (SOURCE / "man" / "wcache.3").read_text())
    unnamed = [name for name in declared if f"{name.partition('@')[0]}(" not in page.replace(" ", "")]
    if unnamed:
        sys.exit(f"not in wcache(3): {sorted(unnamed)}")


if __name__ == "__main__":
    main()
