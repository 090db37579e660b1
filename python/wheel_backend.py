#!/usr/bin/env python3
"""Makes the wheel: the package with libwcache beside it. Needs nothing but Python itself, so that it works offline.

    wheel_backend.py --library FILE --out DIR     what the build does
    pip wheel --no-deps ./python                  the same by PEP 517, of the library in build/release/lib
"""

import argparse
import base64
import hashlib
import pathlib
import re
import sysconfig
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
SONAME = "libwcache.so.0"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same content


def version():
    return re.search(r"^\s*VERSION (\S+)$", (HERE.parent / "CMakeLists.txt").read_text(), re.M)[1]


def platform():
    """The library is of this machine, and of its C library: no promise for others."""
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def contents(library):
    """Path in the wheel -> bytes."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    about = f"{project['name']}-{version()}.dist-info"
    files = {f"wcache/{path.name}": path.read_bytes() for path in sorted((HERE / "wcache").iterdir())
             if path.suffix in (".py", ".typed")}
    files[f"wcache/{SONAME}"] = pathlib.Path(library).read_bytes()
    files[f"{about}/METADATA"] = (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version()}\n"
                                  f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n").encode()
    files[f"{about}/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: wcache\nRoot-Is-Purelib: false\n"
                               f"Tag: py3-none-{platform()}\n").encode()
    rows = [f"{path},sha256={digest_of(data)},{len(data)}" for path, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""]).encode()
    return files


def digest_of(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def make(library, out):
    """Writes the wheel, and gives its name."""
    name = f"wcache-{version()}-py3-none-{platform()}.whl"
    pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(out) / (name + ".tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents(library).items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = (0o755 if path.endswith(SONAME) else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    unfinished.replace(pathlib.Path(out) / name)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517. The setting `library` names another library."""
    built = HERE.parent / "build" / "release" / "lib" / SONAME
    return make((config_settings or {}).get("library", built), wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the package is built with the library, out of the project's own tree")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", required=True, metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR")
    args = parser.parse_args()
    make(args.library, args.out)


if __name__ == "__main__":
    main()
