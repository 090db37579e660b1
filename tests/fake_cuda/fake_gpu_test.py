"""fake_gpu.py against the library itself, by ctypes and in processes of their own."""

import ctypes
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from fake_gpu import FakeGpu  # noqa: E402

LIBRARY = str(Path(os.environ["WCACHE_BIN_DIR"]).parent / "tests" / "libwcache_fake_cuda.so")

ALLOCATE = """
import ctypes, os, sys
cuda = ctypes.CDLL(os.environ["WCACHE_LIBCUDA"])
def check(code):
    if code: sys.exit(code % 256)
context, address = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]))))
print("done", flush=True)
sys.stdin.read()
"""


class FakeGpuTest(unittest.TestCase):
    def process(self, gpu: FakeGpu, size: int, failures: str = "") -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", ALLOCATE, str(size)],
            env=gpu.environment(failures),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def test_what_a_process_has_is_seen_until_it_is_killed(self):
        with FakeGpu(LIBRARY, {"devices": 2}) as gpu, self.process(gpu, 3 << 20) as process:
            self.assertEqual(process.stdout.readline(), b"done\n")
            self.assertEqual(gpu.contexts(), [(0, process.pid)])
            self.assertEqual(gpu.used_bytes(0), 4 << 20)
            self.assertEqual(gpu.live_allocations(0), 1)
            self.assertEqual(gpu.used_bytes(1), 0)
            self.assertEqual(gpu.leaks(process.pid), {"live.allocations": 1, "live.contexts": 1})
            process.kill()
            process.wait()
            self.assertEqual(gpu.contexts(), [])
            self.assertEqual(gpu.used_bytes(0), 0)
            self.assertEqual(gpu.counters(process.pid)["calls.cuMemAlloc_v2"], 1)
            self.assertEqual(gpu.counters(process.pid)["contexts_made.0"], 1)

    def test_configuration_and_failures(self):
        with FakeGpu(LIBRARY, {"device.0.memory": 1 << 20, "read_only_access": False}) as gpu:
            with self.process(gpu, 3 << 20) as process:
                self.assertEqual(process.wait(), 2)
            gpu.configure({"granularity": 4096})
            with self.process(gpu, 1, "cuMemAlloc_v2:1=1") as process:
                self.assertEqual(process.wait(), 1)
            self.assertEqual(gpu.errors(), "")
            gpu.configure({"nonsense": 1})
            with self.process(gpu, 1) as process:
                self.assertEqual(process.wait(), 999 % 256)
            self.assertIn("nonsense", gpu.errors())

    def test_uuid(self):
        with FakeGpu(LIBRARY) as gpu:
            os.environ.update(gpu.environment())
            cuda = ctypes.CDLL(LIBRARY)
            uuid = (ctypes.c_ubyte * 16)()
            self.assertEqual(cuda.cuInit(0), 0)
            self.assertEqual(cuda.cuDeviceGetUuid_v2(uuid, 0), 0)
            self.assertEqual(bytes(uuid).hex(), FakeGpu.default_uuid(0).replace("-", ""))


if __name__ == "__main__":
    unittest.main()
