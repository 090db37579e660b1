#!/usr/bin/env python3
"""--help and the man pages have the same commands, options and words, both ways; and the pages are sound roff."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["WCACHE_BIN_DIR"])
MAN = SOURCE / "man"
COMMON = "Options of every command"
ALONE = "Options without a command"


def words(text):
    return " ".join(text.split())


def plain(line):
    """A roff line without fonts and escapes."""
    line = re.sub(r"\\f[BIRP]", "", line)
    return line.replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\e", "\\").replace(r"\&", "")


class Help:
    """What `--help` says: description, and the rows of each block ("options", "commands", "arguments")."""

    def __init__(self, *command):
        text = subprocess.run([BIN / command[0], *command[1:], "--help"], check=True, capture_output=True, text=True).stdout
        self.usage, self.description, *blocks = text.rstrip("\n").split("\n\n")
        self.description = words(self.description)
        self.blocks = {}
        for block in blocks:
            title, *lines = block.splitlines()
            self.blocks[title.rstrip(":")] = self.rows(lines)

    @staticmethod
    def rows(lines):
        rows = {}
        for line in lines:
            head = re.match(r"  (\S.*?)(?:  +(.*))?$", line) if re.match(r"  \S", line) else None
            if head:
                name = head.group(1)
                rows[name] = head.group(2) or ""
            else:
                rows[name] += " " + line
        return {name: words(text) for name, text in rows.items()}

    @property
    def options(self):
        return self.blocks.get("options", {})


class Page:
    """What a man page says: the text at the start of each section, and its tagged paragraphs (.TP)."""

    def __init__(self, name):
        self.text, self.tagged = {}, {}
        section, place = None, None
        lines = iter((MAN / name).read_text().splitlines())
        for line in lines:
            if match := re.match(r'\.S[HS] "?([^"]*)"?$', line):
                section, place = match.group(1), "text"
                self.text[section], self.tagged[section] = "", {}
            elif line == ".TP":
                tag = plain(next(lines))
                place = tag
                self.tagged[section][tag] = ""
            elif line == ".PP":
                place = None
            elif line.startswith(".") or place is None or section is None:
                continue
            elif place == "text":
                self.text[section] += " " + plain(line)
            else:
                self.tagged[section][place] += " " + plain(line)
        self.text = {name: words(text) for name, text in self.text.items()}
        self.tagged = {section: {tag: words(text) for tag, text in rows.items()} for section, rows in self.tagged.items()}


class ManPages(unittest.TestCase):
    maxDiff = None

    def test_wcache_and_its_commands(self):
        page = Page("wcache.1")
        top = Help("wcache")
        self.assertEqual(top.options, page.tagged[ALONE])
        commands = list(top.blocks["commands"])
        first = list(page.text).index("COMMANDS") + 1
        self.assertEqual(commands, list(page.text)[first:list(page.text).index(COMMON)])
        for command in commands:
            with self.subTest(command):
                said = Help("wcache", command)
                self.assertEqual(said.options, {**page.tagged[command], **page.tagged[COMMON]})
                self.assertEqual(said.description, page.text[command])
                self.assertTrue(said.description.startswith(top.blocks["commands"][command]))

    def test_wcached(self):
        self.assert_same(Help("wcached"), Page("wcached.8"))

    def test_wcachefs(self):
        self.assert_same(Help("wcachefs"), Page("wcachefs.8"))

    def assert_same(self, said, page):
        self.assertEqual(said.options, page.tagged["OPTIONS"])
        self.assertEqual(said.description, page.text["DESCRIPTION"])

    def test_pages_are_sound(self):
        lint = shutil.which("mandoc")
        if not lint:
            self.skipTest("mandoc is not installed")
        for page in sorted(MAN.glob("*.[1-8]")):
            with self.subTest(page.name):
                done = subprocess.run([lint, "-Tlint", "-W", "warning", page], capture_output=True, text=True)
                self.assertEqual(done.stdout + done.stderr, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
