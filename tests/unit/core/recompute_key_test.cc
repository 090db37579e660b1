// tests/tools/recompute_key.py recomputes digests and key in another language: here from an entry that our
// code wrote.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/manifest_json.h"
#include "tests/unit/core/sample_plan.h"
#include "tests/unit/core/temp_dir.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;
using ::wcache::testing::digests_of_heads;
using ::wcache::testing::sample_image;
using ::wcache::testing::TempDir;
using ::wcache::testing::write_file;

struct Outcome {
  int status = 0;
  std::string output;
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), n);
  outcome.status = pclose(pipe);
  return outcome;
}

/// A Python that has xxhash; empty when there is none.
std::string python() {
  for (const char* candidate : {"python3", "/usr/bin/python3"})
    if (run(std::string(candidate) + " -c 'import xxhash'").status == 0) return candidate;
  return {};
}

/// A valid safetensors file of two tensors, the second one of more than a block, with its tensor table.
ImagePlan safetensors_image() {
  std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                       R"("b":{"dtype":"U8","shape":[1048577],"data_offsets":[3,1048580]},)"
                       R"("none":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  bytes += header;
  const std::uint64_t data = bytes.size();
  for (std::uint64_t i = 0; i < 1'048'580; ++i) bytes.push_back(static_cast<char>(i * i >> 3));
  return sample_image("model.safetensors", FileKind::safetensors, bytes,
                      {{"a", "U8", {3}, data, 3},
                       {"none", "U8", {0}, data + 3, 0},
                       {"b", "U8", {1'048'577}, data + 3, 1'048'577}},
                      {{0, data}, {data, 3}, {data + 3, 1'048'577}});
}

/// Writes an entry as the mount shows it; the directory's path.
std::filesystem::path write_entry(const TempDir& mount) {
  EntryPlan plan;
  plan.role = Role::draft0;
  plan.layout = Layout::mtp;
  plan.images = {sample_image("a \xff%\n.txt", FileKind::other, "odd name"),
                 sample_image("empty", FileKind::other, ""), safetensors_image(),
                 sample_image("sub/x.py", FileKind::other, "pass\n")};
  const auto digests = digests_of_heads(plan);
  const auto bytes = build_manifest(plan, digests, key_of(plan, digests).fingerprint(), {}).value();
  const std::vector<ManifestView> ranks{ManifestView::open(bytes).value()};
  const auto directory = mount / "draft0" / to_hex(ranks[0].fingerprint());
  std::filesystem::create_directories(directory / ".wcache");
  std::filesystem::create_directories(directory / "sub");
  for (const ImagePlan& image : plan.images) write_file(directory / image.name, image.head);
  write_file(directory / ".wcache/fingerprint.json", fingerprint_json(ranks).value());
  write_file(directory / ".wcache/manifest.json", manifest_json(ranks[0]));
  return directory;
}

Outcome recompute(const std::filesystem::path& entry) {
  return run(python() + " " + WCACHE_SOURCE_DIR + "/tests/tools/recompute_key.py " + entry.string());
}

class RecomputeKey : public ::testing::Test {
 protected:
  void SetUp() override {
    if (python().empty()) GTEST_SKIP() << "no Python with the package xxhash (Debian: python3-xxhash)";
  }
  TempDir mount_;
};

TEST_F(RecomputeKey, AgreesWithOurs) {
  const Outcome outcome = recompute(write_entry(mount_));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("all equal"));
}

TEST_F(RecomputeKey, SeesOneChangedByteAnywhere) {
  const auto entry = write_entry(mount_);
  std::string bytes = testing::read_file(entry / "model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(entry / "model.safetensors", bytes);
  const Outcome outcome = recompute(entry);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("model.safetensors: digest"));
  EXPECT_THAT(outcome.output, HasSubstr("b: digest"));
}

TEST_F(RecomputeKey, SeesAnotherNameAndAnotherFile) {
  const auto entry = write_entry(mount_);
  write_file(entry / "sub/more", "x");
  const auto renamed = entry.parent_path() / std::string(32, '0');
  std::filesystem::rename(entry, renamed);
  const Outcome outcome = recompute(renamed);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("name of the directory"));
  EXPECT_THAT(outcome.output, HasSubstr("sub/more"));
}

}  // namespace
}  // namespace wcache
