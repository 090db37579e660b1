#include "core/fingerprint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "core/source_state.h"
#include "tests/unit/core/temp_dir.h"

namespace wcache {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::wcache::testing::read_file;
using ::wcache::testing::TempDir;
using ::wcache::testing::write_file;

constexpr std::int64_t kSecond = 1'000'000'000;

SourceFile source_at(const std::filesystem::path& path) {
  struct stat st {};
  EXPECT_EQ(stat(path.c_str(), &st), 0) << path;
  SourceFile source;
  source.name = path.filename().string();
  source.path = path;
  source.identity = FileIdentity::of(st);
  return source;
}

std::string pattern(std::size_t nbytes, unsigned seed) {
  std::string bytes(nbytes, '\0');
  for (char& c : bytes) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

/// A checkpoint of three files: several units of read, a small one, an empty one. Its cache is in a directory
/// of its own.
class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() {
    write_file(model_ / "a.json", "{}");
    write_file(model_ / "b.empty", "");
    write_file(model_ / "c.safetensors", pattern((10 << 20) + 17, 1));
  }

  EntryPlan plan() const {
    Checkpoint checkpoint;
    checkpoint.root = model_.path();
    checkpoint.name = "model";
    for (const char* name : {"a.json", "b.empty", "c.safetensors"})
      checkpoint.files.push_back(source_at(model_ / name));
    checkpoint.files[2].kind = FileKind::safetensors;
    checkpoint.files[2].tensors = {{"t0", "U8", {3 << 20}, 9, 3 << 20}, {"t1", "U8", {1}, (3 << 20) + 9, 1}};
    return plan_checkpoint(std::move(checkpoint), Role::target);
  }

  /// A time at which all files are settled.
  static std::int64_t later() { return system_now_ns() + 10 * kSecond; }

  Result<ResolvedKey> resolve(const EntryPlan& plan, std::int64_t now = later()) const {
    DigestCache cache = DigestCache::open(cache_.path());
    ResolveOptions options;
    options.now = [now] { return now; };
    return resolve_key(plan, cache, options);
  }

  Key expected() const {
    Key key;
    const EntryPlan images = plan();
    for (const ImagePlan& image : images.images) {
      const std::string bytes = read_file(model_ / image.name);
      key.files.push_back(
          {image.name, bytes.size(), file_digest(std::as_bytes(std::span(bytes)), image.segments)});
    }
    return key;
  }

  TempDir model_;
  TempDir cache_;
};

TEST_F(FingerprintTest, ReadsFirstAndRemembersThen) {
  const auto first = resolve(plan());
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->key.canonical(), expected().canonical());
  EXPECT_THAT(first->how, Each(How::read));
  const auto second = resolve(plan());
  ASSERT_TRUE(second);
  EXPECT_EQ(second->key.canonical(), first->key.canonical());
  EXPECT_THAT(second->how, Each(How::remembered));
  DigestCache cache = DigestCache::open(cache_.path());
  EXPECT_EQ(remembered_key(plan(), cache).value().canonical(), first->key.canonical());
}

TEST_F(FingerprintTest, ThreadsDoNotChangeIt) {
  for (unsigned threads : {1u, 2u, 5u}) {
    DigestCache none;
    ResolveOptions options;
    options.threads = threads;
    EXPECT_EQ(resolve_key(plan(), none, options).value().key.canonical(), expected().canonical());
  }
}

TEST_F(FingerprintTest, AnyChangeOfIdentityLeadsToReading) {
  ASSERT_TRUE(resolve(plan()));
  const auto path = model_ / "c.safetensors";
  const auto touched = [&](const char* what) {
    const auto resolved = resolve(plan());
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_THAT(resolved->how, ElementsAre(How::remembered, How::remembered, How::read)) << what;
    EXPECT_EQ(resolved->key.canonical(), expected().canonical()) << what;
  };
  const timespec past[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), past, 0), 0);
  touched("mtime");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  touched("ctime");
  std::filesystem::copy_file(path, model_ / "copy");
  ASSERT_EQ(rename((model_ / "copy").c_str(), path.c_str()), 0);
  touched("inode");
  // One byte, with size and mtime put back.
  std::string bytes = read_file(path);
  bytes[9 << 20] = static_cast<char>(bytes[9 << 20] ^ 1);
  const std::string before = expected().canonical();
  struct stat st {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  write_file(path, bytes);
  const timespec same[2] = {st.st_atim, st.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), same, 0), 0);
  touched("one byte");
  EXPECT_NE(expected().canonical(), before);
}

TEST_F(FingerprintTest, AnotherWayToCutTheFileIsAnotherDigest) {
  ASSERT_TRUE(resolve(plan()));
  EntryPlan other = plan();
  other.images[2].segments = {{0, other.images[2].nbytes}};
  const auto resolved = resolve(other);
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->how, ElementsAre(How::remembered, How::remembered, How::read));
}

TEST_F(FingerprintTest, YoungFilesAreNotRemembered) {
  // The first of the files is then exactly two seconds old, which is not more than two; the others are
  // younger.
  const std::int64_t now = source_at(model_ / "a.json").identity.ctime_ns + 2 * kSecond;
  ASSERT_TRUE(resolve(plan(), now));
  const auto again = resolve(plan(), now);
  ASSERT_TRUE(again);
  // The empty file's bytes are known whatever its age.
  EXPECT_THAT(again->how, ElementsAre(How::read, How::remembered, How::read));
  ASSERT_TRUE(resolve(plan(), now + 1));
  EXPECT_EQ(resolve(plan(), now).value().how[0], How::remembered);
}

TEST_F(FingerprintTest, OldMtimeAloneIsNotEnough) {
  const auto path = model_ / "a.json";
  const timespec past[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), past, 0), 0);
  const std::int64_t now = source_at(path).identity.ctime_ns + kSecond;
  ASSERT_TRUE(resolve(plan(), now));
  EXPECT_EQ(resolve(plan(), now).value().how[0], How::read);
}

TEST_F(FingerprintTest, FileThatChangedSinceThePlanIsStale) {
  for (const char* name : {"a.json", "b.empty", "c.safetensors"}) {
    const EntryPlan old = plan();
    ASSERT_TRUE(resolve(old)) << name;
    write_file(model_ / name, "other");
    const auto resolved = resolve(old);
    ASSERT_FALSE(resolved) << name;
    EXPECT_EQ(resolved.error().reason, Reason::stale);
    EXPECT_THAT(resolved.error().message, HasSubstr((model_ / name).string()));
    EXPECT_THAT(resolved.error().message, HasSubstr("size"));
    DigestCache cache = DigestCache::open(cache_.path());
    EXPECT_FALSE(remembered_key(old, cache)) << name;
  }
}

TEST_F(FingerprintTest, FileThatIsGoneIsStale) {
  const EntryPlan old = plan();
  std::filesystem::remove(model_ / "b.empty");
  const auto resolved = resolve(old);
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().reason, Reason::stale);
  EXPECT_THAT(resolved.error().message, HasSubstr("b.empty"));
}

TEST_F(FingerprintTest, FileThatIsCutWhileItIsReadIsStaleWithItsOffset) {
  const EntryPlan old = plan();
  DigestCache none;
  ResolveOptions options;
  options.threads = 1;
  // The clock is asked before the first byte is read and after the checkpoint was looked at: the change comes
  // between.
  options.now = [&] {
    EXPECT_EQ(truncate((model_ / "c.safetensors").c_str(), 4 << 20), 0);
    return later();
  };
  const auto resolved = resolve_key(old, none, options);
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().reason, Reason::stale);
  EXPECT_THAT(resolved.error().message, HasSubstr("c.safetensors"));
  EXPECT_THAT(resolved.error().message, HasSubstr("byte"));
}

TEST_F(FingerprintTest, ReportsProgressToTheEnd) {
  DigestCache none;
  ResolveOptions options;
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  const EntryPlan images = plan();
  ASSERT_TRUE(resolve_key(images, none, options));
  EXPECT_EQ(last, images.nbytes());
  EXPECT_EQ(total, images.nbytes());
}

TEST_F(FingerprintTest, UnreadableFileIsDenied) {
  const EntryPlan images = plan();
  ASSERT_EQ(chmod(model_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((model_ / "a.json").c_str(), 0), 0);
  struct stat st {};
  ASSERT_EQ(stat((model_ / "a.json").c_str(), &st), 0);
  EntryPlan now = images;
  now.sources[0].identity = FileIdentity::of(st);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(2);  // root reads everything
    DigestCache none;
    const auto resolved = resolve_key(now, none);
    _exit(!resolved && resolved.error().reason == Reason::denied ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ImageOfPieces, IsHashedWithoutBeingMadeAndRemembered) {
  const TempDir model;
  const TempDir cache_dir;
  write_file(model / "one", pattern(3 << 20, 5));
  write_file(model / "two", pattern(10 << 20, 6));
  EntryPlan plan;
  plan.role = Role::draft0;
  plan.layout = Layout::mtp;
  plan.sources = {source_at(model / "one"), source_at(model / "two")};
  ImagePlan image;
  image.name = "model.safetensors";
  image.kind = FileKind::safetensors;
  image.head = pattern(1000, 7);
  image.pieces = {
      {1000, 1, 4 << 20, 2 << 20}, {1000 + (2 << 20), 0, 11, 13}, {1013 + (2 << 20), 1, 0, 1 << 20}};
  image.nbytes = 1013 + (3 << 20);
  image.segments = {{0, 1000}, {1000, 2 << 20}, {1000 + (2 << 20), 13}, {1013 + (2 << 20), 1 << 20}};
  plan.images = {image};

  const std::string one = read_file(model / "one");
  const std::string two = read_file(model / "two");
  const std::string whole =
      image.head + two.substr(4 << 20, 2 << 20) + one.substr(11, 13) + two.substr(0, 1 << 20);
  ASSERT_EQ(whole.size(), image.nbytes);

  DigestCache cache = DigestCache::open(cache_dir.path());
  ResolveOptions options;
  options.now = [] { return system_now_ns() + 10 * kSecond; };
  const auto first = resolve_key(plan, cache, options);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->key.files[0].digest, file_digest(std::as_bytes(std::span(whole)), image.segments));
  EXPECT_EQ(resolve_key(plan, cache, options).value().how[0], How::remembered);

  // Another selection of the same sources is another image.
  plan.images[0].pieces[1].source_offset = 12;
  EXPECT_EQ(resolve_key(plan, cache, options).value().how[0], How::read);
  plan.images[0].pieces[1].source_offset = 11;
  plan.images[0].head[0] = static_cast<char>(plan.images[0].head[0] ^ 1);
  EXPECT_EQ(resolve_key(plan, cache, options).value().how[0], How::read);
}

TEST(ImageOfPieces, HoleBetweenPiecesIsABug) {
  const TempDir model;
  write_file(model / "one", pattern(100, 5));
  EntryPlan plan;
  plan.sources = {source_at(model / "one")};
  ImagePlan image;
  image.name = "m";
  image.nbytes = 60;
  image.pieces = {{0, 0, 0, 20}, {30, 0, 0, 30}};
  image.segments = {{0, 60}};
  plan.images = {image};
  DigestCache none;
  EXPECT_EQ(resolve_key(plan, none).error().reason, Reason::internal);
}

TEST(RememberDigests, LetsTheNextResolveSkipReading) {
  const TempDir model;
  const TempDir cache_dir;
  write_file(model / "one", "bytes");
  EntryPlan plan;
  plan.sources = {source_at(model / "one")};
  ImagePlan image;
  image.name = "one";
  image.nbytes = 5;
  image.pieces = {{0, 0, 0, 5}};
  image.segments = {{0, 5}};
  plan.images = {image};
  const std::vector<ImageDigests> digests{{digest_of("from the fill"), {}}};

  DigestCache cache = DigestCache::open(cache_dir.path());
  remember_digests(plan, digests, cache, plan.sources[0].identity.ctime_ns + kSecond);
  EXPECT_FALSE(remembered_key(plan, cache)) << "too young";
  remember_digests(plan, digests, cache, system_now_ns() + 10 * kSecond);
  ASSERT_TRUE(remembered_key(plan, cache));
  EXPECT_EQ(remembered_key(plan, cache)->files[0].digest, digests[0].file);

  write_file(model / "one", "BYTES");  // no longer what the plan says
  EXPECT_FALSE(remembered_key(plan, cache));
  DigestCache other = DigestCache::open(cache_dir / "other");
  remember_digests(plan, digests, other, system_now_ns() + 10 * kSecond);
  EXPECT_FALSE(other.find(subject_of(plan, plan.images[0]), 5));
}

TEST(Subject, HubBlobNameCounts) {
  EntryPlan plan;
  plan.sources.resize(1);
  plan.images.resize(1);
  plan.images[0].pieces = {{0, 0, 0, 5}};
  const auto subject = [&](const std::filesystem::path& path) {
    plan.sources[0].path = path;
    return subject_of(plan, plan.images[0]);
  };
  const std::string a(64, 'a');
  const std::string b(64, 'b');
  EXPECT_EQ(subject("/x/one"), subject("/y/two")) << "the path does not count";
  EXPECT_EQ(subject("/x/" + a), subject("/x/" + b)) << "not in a hub cache";
  EXPECT_NE(subject("/hub/blobs/" + a), subject("/hub/blobs/" + b));
  EXPECT_EQ(subject("/hub/blobs/" + a), subject("/other/blobs/" + a));
}

}  // namespace
}  // namespace wcache
