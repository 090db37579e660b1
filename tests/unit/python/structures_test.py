#!/usr/bin/env python3
"""The structures of wcache.h and their mirrors in the Python package: the same fields at the same places.

    structures_test.py DIRECTORY-OF-THE-PACKAGE
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HEADER = pathlib.Path(__file__).resolve().parents[3] / "client" / "wcache.h"
package = sys.argv.pop(1)
sys.path.insert(0, package)
from wcache import _dlpack, _library  # noqa: E402


def fields_of(name):
    """The names of a structure's fields, in order, by the header's own text."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(r"typedef struct " + name + r" \{(.*?)\}", text, re.S)[1]
    return re.findall(r"(\w+)(?:\[\d+\])?;", body)


def layouts_in_c():
    """structure -> (size, [(offset, size) of each field]), as a C compiler has them."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{HEADER}"', "int main(void) {"]
    for name in _library.STRUCTURES:
        lines.append(f'printf("{name} %zu", sizeof({name}));')
        for field in fields_of(name):
            lines.append(f'printf(" %zu:%zu", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));')
        lines.append('puts("");')
    with tempfile.TemporaryDirectory() as work:
        program = pathlib.Path(work) / "layouts"
        source = program.with_suffix(".c")
        source.write_text("\n".join([*lines, "return 0; }"]))
        subprocess.run(["cc", "-std=c11", source, "-o", program], check=True)
        out = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    layouts = {}
    for line in out.splitlines():
        name, size, *fields = line.split()
        layouts[name] = (int(size), [tuple(map(int, field.split(":"))) for field in fields])
    return layouts


class Structures(unittest.TestCase):
    def test_they_are_those_of_the_header(self):
        layouts = layouts_in_c()
        self.assertEqual(set(layouts), set(re.findall(r"typedef struct (wcache_\w+) \{", HEADER.read_text())))
        for name, mirror in _library.STRUCTURES.items():
            with self.subTest(structure=name):
                names = [field[0] for field in mirror._fields_]
                self.assertEqual(names, fields_of(name))
                places = [(getattr(mirror, field).offset, getattr(mirror, field).size) for field in names]
                self.assertEqual((ctypes.sizeof(mirror), places), layouts[name])

    def test_dlpacks_are_those_of_its_specification(self):
        """dlpack.h 1.1 on 64-bit machines."""
        def places(structure):
            return [getattr(structure, field[0]).offset for field in structure._fields_] + [ctypes.sizeof(structure)]
        self.assertEqual(places(_dlpack.Device), [0, 4, 8])
        self.assertEqual(places(_dlpack.DataType), [0, 1, 2, 4])
        self.assertEqual(places(_dlpack.Tensor), [0, 8, 16, 20, 24, 32, 40, 48])
        self.assertEqual(places(_dlpack.Managed), [0, 48, 56, 64])
        self.assertEqual(places(_dlpack.ManagedVersioned), [0, 4, 8, 16, 24, 32, 80])


if __name__ == "__main__":
    unittest.main(verbosity=2)
