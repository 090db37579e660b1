#!/usr/bin/env python3
"""The verdicts that tests/tools/malformed.py gives in the safetensors library's name are the library's own.

    check_malformed.py CASES_DIRECTORY
"""

import json
import pathlib
import sys

from safetensors import SafetensorError, safe_open

# How the library's messages begin, for each kind of error that it has.
MESSAGES = {
    "HeaderTooSmall": "header too small", "HeaderTooLarge": "header too large",
    "InvalidHeaderLength": "invalid header length", "InvalidHeader": "invalid UTF-8 in header",
    "InvalidHeaderDeserialization": "invalid JSON in header", "InvalidOffset": "invalid offset for tensor",
    "ValidationOverflow": "overflow computing buffer size", "MisalignedSlice": "The slice is slicing for subbytes dtypes",
    "TensorInvalidInfo": "invalid shape, data type, or offset", "MetadataIncompleteBuffer": "incomplete metadata",
}


def verdict(path):
    try:
        with safe_open(path, "np") as f:
            f.keys()
        return "accepts"
    except (SafetensorError, OSError, ValueError) as e:
        text = str(e).removeprefix("Error while deserializing header: ")
        return next((kind for kind, start in MESSAGES.items() if text.startswith(start)), text)


def main():
    root, wrong, count = pathlib.Path(sys.argv[1]), [], 0
    for name, case in json.loads((root / "cases.json").read_text()).items():
        if "library" in case:
            count += 1
            got = verdict(root / name / "model.safetensors")
            if got != case["library"]:
                wrong.append(f"{name}: {case['library']} expected, the library says: {got}")
    print(*wrong, f"malformed: {count} cases, {len(wrong)} wrong", sep="\n")
    sys.exit(1 if wrong or not count else 0)


if __name__ == "__main__":
    main()
