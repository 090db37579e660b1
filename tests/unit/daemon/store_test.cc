#include "daemon/store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/sealed.h"
#include "daemon/verify.h"
#include "tests/unit/daemon/tiny_checkpoint.h"
#include "tests/unit/ipc/temporary_directory.h"

namespace wcache {
namespace {

using namespace std::chrono_literals;

/// Loads into memfds, which needs no rights.
class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    make_tiny_checkpoint(model_);
    kernel_.fsopen = [](const char*, unsigned) {
      errno = EPERM;
      return -1;
    };
  }

  Result<StoredEntry> load(const std::string& model, DigestCache& cache, std::stop_token stop = {}) {
    events_.clear();
    const MachineDisk disk = open_machine_disk();
    const LoadMachine machine{kernel_, *disk.disk, disk.note, cache,
                              [this](const MemoryNeed&) { return budget_; }};
    LoadRequest request;
    request.group.route.target = model;
    request.name = "given";
    request.placement.device_uuid = "HOST-0";
    request.grouped = grouped_;
    request.node_ranks = grouped_ ? 2 : 1;
    return load_entry(request, machine,
                      {[this](const EntryPlan&) { events_ += "planned "; },
                       [this](const Fingerprint& fingerprint) {
                         events_ += "known ";
                         known_ = fingerprint;
                         return claim_;
                       },
                       [this](const FillProgress&) {
                         if (!events_.ends_with("filling ")) events_ += "filling ";
                       },
                       [this](const Key& own) -> Result<Key> {
                         events_ += "agree ";
                         Key key = own;
                         key.files.push_back(other_);
                         return key;
                       }},
                      stop);
  }

  TemporaryDirectory dir_;
  std::string model_ = dir_.file("model");
  MemoryKernel kernel_ = MemoryKernel::real();
  Status budget_;
  bool grouped_ = false;
  Key::File other_{"zzz-of-another-rank", 3, digest_of("xyz")};
  Status claim_;
  std::string events_;
  std::optional<Fingerprint> known_;
};

TEST_F(StoreTest, LoadsEveryFileIntoMemoryThatCannotChange) {
  DigestCache none;
  const auto entry = load(model_, none);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_EQ(events_, "planned filling known ");
  EXPECT_EQ(known_, entry->fingerprint);
  EXPECT_EQ(entry->plan.name, "given");
  ASSERT_EQ(entry->memory.images.size(), 4u);
  for (std::size_t i = 0; i < entry->plan.images.size(); ++i) {
    const ImagePlan& image = entry->plan.images[i];
    std::string bytes(image.nbytes, '\0');
    ASSERT_TRUE(
        read_exact(entry->memory.images[i].get(), std::as_writable_bytes(std::span(bytes)), 0, image.name));
    EXPECT_EQ(bytes, read_file(model_ + "/" + image.name)) << image.name;
    EXPECT_TRUE(check_sealed(entry->memory.images[i].get(), image.nbytes)) << image.name;
  }
  EXPECT_TRUE(check_sealed(entry->memory.manifest.get(), entry->manifest_nbytes));
  const auto manifest =
      Mapping::map(entry->memory.manifest.get(), entry->manifest_nbytes, PROT_READ, MAP_SHARED, "m");
  const auto view = ManifestView::open(manifest->bytes());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->fingerprint(), entry->fingerprint);
  EXPECT_EQ(view->placement().device_uuid, "HOST-0");
  EXPECT_EQ(view->name(), "given");
}

TEST_F(StoreTest, OneByteAnywhereIsAnotherFingerprint) {
  DigestCache none;
  const Fingerprint before = load(model_, none)->fingerprint;
  EXPECT_EQ(load(model_, none)->fingerprint, before);
  for (const char* name : {"/config.json", "/sub/notes.txt", "/model.safetensors"}) {
    const std::string path = model_ + name;
    const std::string bytes = read_file(path);
    std::string other = bytes;
    other.back() = static_cast<char>(other.back() ^ 1);
    if (std::string(name) == "/config.json") other = bytes + "\n";
    write_file(path, other);
    EXPECT_NE(load(model_, none)->fingerprint, before) << name;
    write_file(path, bytes);
  }
  std::filesystem::rename(model_, dir_.file("elsewhere"));
  EXPECT_EQ(load(dir_.file("elsewhere"), none)->fingerprint, before);
}

TEST_F(StoreTest, ARememberedFingerprintIsClaimedBeforeAnythingIsRead) {
  std::this_thread::sleep_for(2100ms);  // younger files are not remembered
  DigestCache cache = DigestCache::open(dir_.file("cache"));
  ASSERT_TRUE(load(model_, cache));
  EXPECT_EQ(events_, "planned filling known ");
  ASSERT_TRUE(load(model_, cache));
  if (events_ == "planned filling known ") GTEST_SKIP() << "the file system keeps no trustworthy ctime";
  EXPECT_EQ(events_, "planned known filling ");
  claim_ = fail(Reason::busy, "served");
  EXPECT_EQ(load(model_, cache).error().reason, Reason::busy);
  EXPECT_EQ(events_, "planned known ");
}

TEST_F(StoreTest, WhoeverServesItAlreadyEndsTheLoad) {
  DigestCache none;
  claim_ = fail(Reason::busy, "served");
  EXPECT_EQ(load(model_, none).error().message, "served");
}

TEST_F(StoreTest, AGroupedRankIsPublishedUnderTheKeyOfTheGroup) {
  DigestCache none;
  const Fingerprint alone = load(model_, none)->fingerprint;
  grouped_ = true;
  const auto entry = load(model_, none);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_EQ(events_, "planned filling agree known ");
  EXPECT_NE(entry->fingerprint, alone);
  EXPECT_EQ(known_, entry->fingerprint);
  const auto mapping =
      Mapping::map(entry->memory.manifest.get(), entry->manifest_nbytes, PROT_READ, MAP_SHARED, "manifest");
  const auto view = ManifestView::open(mapping->bytes());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->node_ranks(), 2u);
  EXPECT_EQ(view->others(), std::vector<Key::File>{other_});
  EXPECT_EQ(view->fingerprint(), entry->fingerprint);
}

TEST_F(StoreTest, TheBudgetIsAskedBeforeTheFirstByte) {
  DigestCache none;
  budget_ = fail(Reason::over_budget, "too small");
  EXPECT_EQ(load(model_, none).error().message, "too small");
  EXPECT_EQ(events_, "planned ");
}

TEST_F(StoreTest, AStopIsATimeout) {
  DigestCache none;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(load(model_, none, stop.get_token()).error().reason, Reason::timeout);
}

TEST_F(StoreTest, ErrorsNameTheFile) {
  DigestCache none;
  const std::string path = model_ + "/model.safetensors";
  std::filesystem::resize_file(path, 1'000'000);
  const auto truncated = load(model_, none);
  ASSERT_FALSE(truncated);
  EXPECT_EQ(truncated.error().reason, Reason::corrupt);
  EXPECT_NE(truncated.error().message.find("model.safetensors"), std::string::npos);
  EXPECT_EQ(load(dir_.file("absent"), none).error().reason, Reason::invalid);
}

class VerifyTest : public StoreTest {
 protected:
  /// The same entry with another file in the place of image `i`.
  static void replace(StoredEntry& entry, std::size_t i, std::uint64_t flip) {
    const std::uint64_t nbytes = entry.plan.images[i].nbytes;
    std::string bytes(nbytes, '\0');
    ASSERT_TRUE(
        read_exact(entry.memory.images[i].get(), std::as_writable_bytes(std::span(bytes)), 0, "image"));
    bytes[flip] = static_cast<char>(bytes[flip] ^ 4);
    Fd file = Fd::adopt(memfd_create("other", MFD_CLOEXEC));
    ASSERT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    entry.memory.images[i] = std::move(file);
  }

  static std::size_t index_of(const StoredEntry& entry, const std::string& name) {
    for (std::size_t i = 0; i < entry.plan.images.size(); ++i)
      if (entry.plan.images[i].name == name) return i;
    ADD_FAILURE() << name;
    return 0;
  }

  DigestCache none_;
};

TEST_F(VerifyTest, FindsNothingInGoodBytes) {
  const auto entry = load(model_, none_);
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto reply = verify_entry(*entry,
                                  [&](std::uint64_t done, std::uint64_t all) {
                                    EXPECT_GE(done, last);
                                    last = done;
                                    total = all;
                                  },
                                  {});
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_TRUE(reply->ok);
  EXPECT_EQ(total, entry->plan.nbytes());
  EXPECT_EQ(last, total);
}

TEST_F(VerifyTest, NamesFileAndTensorOfAFlippedBit) {
  auto entry = load(model_, none_);
  const std::size_t weights = index_of(*entry, "model.safetensors");
  const std::uint64_t nbytes = entry->plan.images[weights].nbytes;
  struct Case {
    std::uint64_t flip;
    const char* tensor;
  };
  for (const Case& which : {Case{nbytes - 1, "b.bias"}, Case{nbytes - 9, "a.weight"}, Case{10, ""}}) {
    auto damaged = load(model_, none_);
    replace(*damaged, weights, which.flip);
    const auto reply = verify_entry(*damaged, [](std::uint64_t, std::uint64_t) {}, {});
    ASSERT_TRUE(reply);
    EXPECT_FALSE(reply->ok);
    EXPECT_EQ(reply->file, "model.safetensors");
    EXPECT_EQ(reply->tensor, which.tensor);
    EXPECT_NE(reply->expected, reply->found);
  }
}

TEST_F(VerifyTest, NoticesAnotherManifest) {
  auto entry = load(model_, none_);
  entry->manifest_digest.low ^= 1;
  const auto reply = verify_entry(*entry, [](std::uint64_t, std::uint64_t) {}, {});
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->ok);
  EXPECT_EQ(reply->file, ".wcache/manifest");
}

TEST_F(VerifyTest, CanBeStopped) {
  const auto entry = load(model_, none_);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(verify_entry(
                *entry, [](std::uint64_t, std::uint64_t) {}, stop.get_token())
                .error()
                .reason,
            Reason::timeout);
}

}  // namespace
}  // namespace wcache
