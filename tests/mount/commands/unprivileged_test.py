#!/usr/bin/env python3
"""A user without any right: fusermount3 mounts, memory is a sealed memfd, reads are copied, and all of it works.

Run by root, who takes a mount namespace of its own for it, with a /dev/fuse that everybody may open, as most machines
have it.
"""

import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import make_checkpoint

SET_UP = """
set -eu
mount -t tmpfs -o dev wct "$TOP/dev"
mknod "$TOP/dev/fuse" c 10 229
chmod 0666 "$TOP/dev/fuse"
mount --bind "$TOP/dev/fuse" /dev/fuse
exec setpriv --reuid=nobody --regid=nogroup --clear-groups bash -c "$1"
"""

SESSION = """
set -u
"$BIN/wcache" doctor >"$TOP/rt/doctor" || exit 11
"$BIN/wcache" preload "$TOP/model" >"$TOP/rt/out" 2>"$TOP/rt/err" &
path=$("$BIN/wcache" wait --timeout 60) || exit 12
test "$path" = "$XDG_RUNTIME_DIR/wcache/mnt/target/$(basename "$path")" || exit 13
diff -r --exclude=.wcache "$TOP/model" "$path" || exit 14
"$BIN/wcache" status >"$TOP/rt/status" || exit 15
"$BIN/wcache" verify >/dev/null 2>&1 || exit 16
"$BIN/wcache" evict "$path" >/dev/null || exit 17
wait %1 || exit 18
test -z "$(ls -A "$XDG_RUNTIME_DIR" | grep wcache)" || exit 19
"""


class Unprivileged(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to become somebody without rights")
        for tool in ("unshare", "setpriv", "fusermount3"):
            if not shutil.which(tool):
                self.skipTest(f"{tool} is not installed")
        try:
            self.nobody = pwd.getpwnam("nobody").pw_uid
        except KeyError:
            self.skipTest("there is no user nobody")

    def test_a_whole_session(self):
        # Below /tmp and not /var/tmp: some systems keep others out of a home directory's tests.
        top = pathlib.Path(tempfile.mkdtemp(prefix="wcu-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, top, ignore_errors=True)
        top.chmod(0o755)
        make_checkpoint(top / "model", "--kind", "demo", "--size", "8M", "--shards", 2)
        (top / "dev").mkdir()
        (top / "rt").mkdir(mode=0o700)
        os.chown(top / "rt", self.nobody, -1)
        programs = top / "bin"  # the build may lie where nobody may look
        programs.mkdir()
        for name in ("wcache", "wcached", "wcachefs"):
            shutil.copy(harness.BIN / name, programs / name)
        environment = {"PATH": os.environ["PATH"], "TOP": str(top), "BIN": str(programs),
                       "XDG_RUNTIME_DIR": str(top / "rt"), "WCACHE_CACHE_DIR": str(top / "rt" / "cache"),
                       "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
        done = subprocess.run(["unshare", "-m", "bash", "-c", SET_UP, "bash", SESSION], env=environment,
                              capture_output=True, text=True, timeout=harness.WAIT * 3)
        said = {name: (top / "rt" / name).read_text() if (top / "rt" / name).exists() else "" for name in
                ("doctor", "out", "err", "status")}
        self.assertEqual(done.returncode, 0, (done.stdout, done.stderr, said))
        self.assertIn("fusermount3", said["doctor"])
        self.assertIn("no passthrough", said["status"])
        self.assertIn("mappings do not outlive the mount", said["status"])


if __name__ == "__main__":
    harness.main()
