#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <utility>
#include <vector>

#include "core/manifest.h"
#include "core/sealed.h"
#include "daemon/fill/read_plan.h"
#include "daemon/memory/cuda/context.h"
#include "daemon/memory/cuda/pinned.h"
#include "daemon/memory/cuda/slabs.h"
#include "daemon/store.h"
#include "daemon/verify.h"
#include "tests/unit/daemon/memory/cuda/cuda_loading.h"
#include "tests/unit/daemon/tiny_checkpoint.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;
using testing::kMiB;

struct Named {
  std::string name, dtype, shape;
  std::uint64_t nbytes = 0;
};

/// Every dtype of the format, in odd sizes, with empty tensors among them.
const std::vector<Named>& every_dtype() {
  static const std::vector<Named> tensors{
      {"bf16", "BF16", "[3,5]", 30},
      {"bool", "BOOL", "[7]", 7},
      {"c64", "C64", "[3]", 24},
      {"empty", "F32", "[0]", 0},
      {"empty2", "I64", "[4,0,2]", 0},
      {"f16", "F16", "[1]", 2},
      {"f32", "F32", "[900001]", 3600004},
      {"f64", "F64", "[2,2]", 32},
      {"f8a", "F8_E4M3", "[13]", 13},
      {"f8b", "F8_E5M2", "[11]", 11},
      {"i16", "I16", "[5]", 10},
      {"i32", "I32", "[3]", 12},
      {"i64", "I64", "[1]", 8},
      {"i8", "I8", "[2500001]", 2500001},
      {"scalar", "F32", "[]", 4},
      {"u8", "U8", "[1048577]", 1048577},
  };
  return tensors;
}

std::string safetensors_of(const std::vector<Named>& tensors) {
  std::string header = "{";
  std::uint64_t at = 0;
  for (const Named& tensor : tensors) {
    header += (at == 0 && header.size() == 1 ? "" : ",") + ("\"" + tensor.name) + R"(":{"dtype":")" +
              tensor.dtype + R"(","shape":)" + tensor.shape + R"(,"data_offsets":[)" + std::to_string(at) +
              "," + std::to_string(at + tensor.nbytes) + "]}";
    at += tensor.nbytes;
  }
  header += "}";
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  for (const std::byte b : testing::random_bytes(at, 5)) file += static_cast<char>(b);
  return file;
}

/// Loads into memfds and the fake device.
class StoreCudaTest : public testing::CudaTest {
 protected:
  StoreCudaTest() {
    make_tiny_checkpoint(model_);
    write_file(model_ + "/other.safetensors", safetensors_of(every_dtype()));
    kernel_.fsopen = [](const char*, unsigned) {
      errno = EPERM;
      return -1;
    };
  }

  Result<StoredEntry> load(const CudaTarget* device) {
    DigestCache none;
    const MachineDisk disk = open_machine_disk();
    const LoadMachine machine{kernel_,
                              *disk.disk,
                              disk.note,
                              none,
                              [this](const MemoryNeed& need) {
                                need_ = need;
                                return budget_;
                              },
                              device};
    LoadRequest request;
    request.group.route.target = model_;
    request.placement.device_uuid = device != nullptr ? device->device.uuid : "HOST-0";
    progress_.clear();
    return load_entry(request, machine,
                      {[](const EntryPlan&) {}, [](const Fingerprint&) { return Status(); },
                       [this](const FillProgress& now) { progress_.push_back(now); }},
                      {});
  }

  /// What a client with the slab's descriptor sees, or writes where its driver lets it.
  void copy(const CudaTarget& on, const StoredEntry& entry, std::size_t slab, std::uint64_t nbytes,
            const std::function<CUresult(const CudaDriver&, CUdeviceptr, CUstream)>& with) {
    const CudaDriver& driver = *on.driver;
    const auto context = CudaContext::retain(driver, on.device);
    const auto current = CurrentContext::enter(*context);
    const auto mapping = SlabMapping::import(driver, on.device, entry.device->slabs()[slab].get(), nbytes,
                                             CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_TRUE(mapping) << mapping.error().message;
    const auto stream = make_stream(driver);
    ASSERT_EQ(with(driver, mapping->address(), stream->get()), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
  }

  static Mapping manifest_of(const StoredEntry& entry) {
    return Mapping::map(entry.memory.manifest.get(), entry.manifest_nbytes, PROT_READ, MAP_SHARED, "manifest")
        .value();
  }

  TemporaryDirectory dir_;
  std::string model_ = dir_.file("model");
  MemoryKernel kernel_ = MemoryKernel::real();
  Status budget_;
  MemoryNeed need_;
  std::vector<FillProgress> progress_;
};

TEST_F(StoreCudaTest, WeightsAreOnTheDeviceAndTheRestInHostMemory) {
  const auto host = load(nullptr);
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_EQ(need_.device_nbytes, 0u);
  EXPECT_EQ(need_.staging_nbytes, 0u);
  const std::uint64_t on_host = need_.host_nbytes;
  for (const DeviceIpc ipc : {DeviceIpc::vmm, DeviceIpc::legacy}) {
    const CudaTarget target = find_target(ipc).value();
    const auto entry = load(&target);
    ASSERT_TRUE(entry) << entry.error().message;
    EXPECT_EQ(entry->fingerprint, host->fingerprint);
    ASSERT_TRUE(entry->device);
    EXPECT_EQ(need_.device_nbytes, gpu_.used_bytes(0));
    EXPECT_GE(need_.staging_nbytes, FillOptions{}.depth * kBounceNbytes);
    EXPECT_LE(need_.staging_nbytes, std::uint64_t{256} << 20);
    EXPECT_LT(need_.host_nbytes + entry->plan.weight_nbytes(), on_host + 4096);
    for (std::size_t i = 0; i < entry->plan.images.size(); ++i) {
      const ImagePlan& image = entry->plan.images[i];
      EXPECT_EQ(entry->digests[i].file, host->digests[i].file);
      EXPECT_EQ(static_cast<bool>(entry->memory.images[i]), !is_weights(image.kind)) << image.name;
      std::string bytes(image.nbytes, '\0');
      const auto into = std::as_writable_bytes(std::span(bytes));
      ASSERT_TRUE(is_weights(image.kind) ? entry->device->read(i, 0, into)
                                         : read_exact(entry->memory.images[i].get(), into, 0, image.name));
      EXPECT_TRUE(bytes == read_file(model_ + "/" + image.name)) << image.name;
      EXPECT_TRUE(!entry->memory.images[i] || check_sealed(entry->memory.images[i].get(), image.nbytes));
    }
  }
}

TEST_F(StoreCudaTest, TheManifestSaysWhereEachTensorLies) {
  const CudaTarget target = find_target().value();
  const auto entry = load(&target);
  ASSERT_TRUE(entry) << entry.error().message;
  const Mapping mapped = manifest_of(*entry);
  const auto manifest = ManifestView::open(mapped.bytes());
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->placement().tier, "cuda");
  EXPECT_EQ(manifest->placement().ipc_kind, "cuda-vmm");
  EXPECT_EQ(manifest->placement().device_uuid, "GPU-" + testing::FakeGpu::default_uuid(0));
  ASSERT_EQ(manifest->slab_count(), entry->device->slabs().size());
  ASSERT_GT(manifest->slab_count(), 2u);
  EXPECT_EQ(manifest->tensor_count(), every_dtype().size() + 2);
  for (std::size_t row = 0; row < manifest->tensor_count(); ++row) {
    const auto tensor = manifest->tensor(row).value();
    SCOPED_TRACE(tensor.name);
    if (tensor.nbytes == 0) continue;
    EXPECT_EQ(tensor.slab_offset % kSlabAlignment, 0u);
    const auto file = manifest->file(tensor.file).value();
    const std::string expected =
        read_file(model_ + "/" + std::string(file.name)).substr(tensor.offset, tensor.nbytes);
    std::string found(tensor.nbytes, '\0');
    copy(target, *entry, tensor.slab, manifest->slab_nbytes(tensor.slab),
         [&](const CudaDriver& driver, CUdeviceptr at, CUstream stream) {
           return driver.cuMemcpyDtoHAsync(found.data(), at + tensor.slab_offset, tensor.nbytes, stream);
         });
    EXPECT_TRUE(found == expected);
  }
}

TEST_F(StoreCudaTest, ProgressIsThatOfTheWholeEntry) {
  const CudaTarget target = find_target().value();
  const auto entry = load(&target);
  ASSERT_TRUE(entry) << entry.error().message;
  ASSERT_FALSE(progress_.empty());
  std::uint64_t last = 0;
  for (const FillProgress& now : progress_) {
    EXPECT_EQ(now.total, entry->plan.nbytes());
    EXPECT_GE(now.filled, last);
    last = now.filled;
  }
  EXPECT_EQ(last, entry->plan.nbytes());
}

TEST_F(StoreCudaTest, VerifyReadsTheDevice) {
  const CudaTarget target = find_target(DeviceIpc::vmm).value();
  const auto entry = load(&target);
  ASSERT_TRUE(entry) << entry.error().message;
  const auto verify = [&] { return verify_entry(*entry, [](std::uint64_t, std::uint64_t) {}, {}).value(); };
  EXPECT_TRUE(verify().ok);

  const Mapping mapped = manifest_of(*entry);
  const auto manifest = ManifestView::open(mapped.bytes());
  const auto tensor = manifest->tensor(manifest->find_tensor("i8").value()).value();
  std::byte flipped{};
  ASSERT_TRUE(entry->device->read(tensor.file, tensor.offset + 2'000'000, {&flipped, 1}));
  flipped ^= std::byte{4};
  copy(target, *entry, tensor.slab, manifest->slab_nbytes(tensor.slab),
       [&](const CudaDriver& driver, CUdeviceptr at, CUstream stream) {
         return driver.cuMemcpyHtoDAsync(at + tensor.slab_offset + 2'000'000, &flipped, 1, stream);
       });
  const VerifyReply reply = verify();
  EXPECT_FALSE(reply.ok);
  EXPECT_EQ(reply.file, "other.safetensors");
  EXPECT_EQ(reply.tensor, "i8");
}

TEST_F(StoreCudaTest, VerifyOfALegacyEntryToo) {
  const CudaTarget target = find_target(DeviceIpc::legacy).value();
  const auto entry = load(&target);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_TRUE(verify_entry(*entry, [](std::uint64_t, std::uint64_t) {}, {})->ok);
}

TEST_F(StoreCudaTest, ABudgetThatIsTooSmallLeavesNothing) {
  budget_ = fail(Reason::over_budget, "too small");
  const CudaTarget target = find_target().value();
  EXPECT_EQ(load(&target).error().message, "too small");
  EXPECT_EQ(control_.calls("cuMemCreate"), 0u);
  expect_nothing_left();
}

TEST_F(StoreCudaTest, AFailureAfterTheFillLeavesNothing) {
  const CudaTarget target = find_target().value();
  kernel_.add_seals = [](int, int) {
    errno = EPERM;
    return -1;
  };
  EXPECT_FALSE(load(&target));
  expect_nothing_left();
}

}  // namespace
}  // namespace wcache
