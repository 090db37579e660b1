#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "core/checkpoint/checkpoint.h"
#include "core/entry_plan.h"
#include "tests/unit/core/checkpoint/support.h"

namespace wcache {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::entry;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_tensor;
using testing::safetensors;
using testing::TempDir;

constexpr const char* kIndex = "model.safetensors.index.json";
const std::string kConfig = R"({"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"})";

std::string index_of(std::string_view map) {
  return R"({"metadata": {"total_size": 8}, "weight_map": {)" + std::string(map) + "}}";
}

/// Two shards and their index, a config, a file in a sub-directory.
void write_sharded(const TempDir& dir) {
  dir.write("model-00001-of-00002.safetensors", one_tensor("a", "aaaa"));
  dir.write("model-00002-of-00002.safetensors", one_tensor("b", "bbbb"));
  dir.write(kIndex,
            index_of(R"("a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors")"));
  dir.write("config.json", kConfig);
  dir.write("code/modeling.py", "pass\n");
}

std::vector<std::string> names(const Checkpoint& checkpoint) {
  std::vector<std::string> out;
  for (const SourceFile& file : checkpoint.files) out.push_back(file.name);
  return out;
}

/// "name: why" of each.
std::vector<std::string> left_out(const Checkpoint& checkpoint) {
  std::vector<std::string> out;
  for (const LeftOut& left : checkpoint.left_out) out.push_back(left.name + ": " + left.why);
  return out;
}

Checkpoint opened(const fs::path& path) {
  Result<Checkpoint> checkpoint = open_checkpoint(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? std::move(*checkpoint) : Checkpoint();
}

Error refused(const fs::path& path) {
  Result<Checkpoint> checkpoint = open_checkpoint(path);
  EXPECT_FALSE(checkpoint);
  return checkpoint ? Error() : std::move(checkpoint.error());
}

const SourceFile& file(const Checkpoint& checkpoint, std::string_view name) {
  const auto at = std::find_if(checkpoint.files.begin(), checkpoint.files.end(),
                               [name](const SourceFile& source) { return source.name == name; });
  EXPECT_NE(at, checkpoint.files.end()) << name;
  static const SourceFile kNone;
  return at == checkpoint.files.end() ? kNone : *at;
}

TEST(OpenCheckpoint, ShardedDirectory) {
  const TempDir dir;
  write_sharded(dir);
  const Checkpoint checkpoint = opened(dir.path());
  EXPECT_EQ(checkpoint.root, dir.path());
  EXPECT_EQ(checkpoint.name, dir.path().filename());
  EXPECT_EQ(checkpoint.architecture, "LlamaForCausalLM");
  EXPECT_EQ(checkpoint.dtype, "bfloat16");
  EXPECT_EQ(checkpoint.quantization, "");
  EXPECT_THAT(names(checkpoint),
              ElementsAre("code/modeling.py", "config.json", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors", kIndex));
  EXPECT_THAT(checkpoint.left_out, IsEmpty());
  const SourceFile& shard = file(checkpoint, "model-00002-of-00002.safetensors");
  struct stat st {};
  ASSERT_EQ(stat(shard.path.c_str(), &st), 0);
  EXPECT_EQ(shard.identity, FileIdentity::of(st));
  EXPECT_EQ(shard.identity.nbytes, fs::file_size(shard.path));
  EXPECT_EQ(shard.kind, FileKind::safetensors);
  ASSERT_EQ(shard.tensors.size(), 1u);
  EXPECT_EQ(shard.tensors[0].name, "b");
  EXPECT_EQ(file(checkpoint, "code/modeling.py").kind, FileKind::other);
}

TEST(OpenCheckpoint, SingleFileInADirectory) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  const Checkpoint checkpoint = opened(dir.path() / "." / "");
  EXPECT_EQ(checkpoint.root, dir.path());
  EXPECT_EQ(checkpoint.name, dir.path().filename());
  EXPECT_THAT(names(checkpoint), ElementsAre("model.safetensors"));
  EXPECT_EQ(checkpoint.dtype, "U8");  // of most weight bytes, where there is no config
}

TEST(OpenCheckpoint, HubSnapshotWithLinksOfTwoSteps) {
  const TempDir cache;
  const std::string sha(64, 'e'), revision(40, 'a');
  cache.write("blobs/ee/" + sha, one_tensor("a", "aaaa"));
  fs::create_directories(cache.path() / "models--acme--MiMo-7B" / "blobs");
  fs::create_symlink("../../blobs/ee/" + sha, cache.path() / "models--acme--MiMo-7B" / "blobs" / sha);
  const fs::path snapshot = cache.path() / "models--acme--MiMo-7B" / "snapshots" / revision;
  cache.write("models--acme--MiMo-7B/blobs/c0ffee", kConfig);
  fs::create_directories(snapshot / "sub");
  fs::create_symlink("../../blobs/" + sha, snapshot / "model.safetensors");
  fs::create_symlink("../../../blobs/c0ffee", snapshot / "sub" / "config.json");
  for (const fs::path& given : {snapshot, snapshot / "", snapshot / "sub" / ".."}) {
    const Checkpoint checkpoint = opened(given);
    EXPECT_EQ(checkpoint.name, "MiMo-7B");
    EXPECT_EQ(checkpoint.root, snapshot);
    EXPECT_THAT(names(checkpoint), ElementsAre("model.safetensors", "sub/config.json"));
    EXPECT_EQ(file(checkpoint, "model.safetensors").path, cache.path() / "blobs" / "ee" / sha);
  }

  const Error error = refused(cache.path() / "models--acme--MiMo-7B");
  EXPECT_EQ(error.reason, Reason::invalid);
  EXPECT_THAT(error.hint, HasSubstr(snapshot.string()));

  fs::create_symlink(snapshot, cache.path() / "my-model");
  EXPECT_EQ(opened(cache.path() / "my-model").name, "my-model");  // the user's own word for it
  EXPECT_EQ(opened(cache.path() / "my-model").root, snapshot);

  const Checkpoint single = opened(snapshot / "model.safetensors");
  EXPECT_EQ(single.name, "model.safetensors");
  EXPECT_EQ(single.root, snapshot / "model.safetensors");
  EXPECT_THAT(names(single), ElementsAre("model.safetensors"));
}

TEST(OpenCheckpoint, SingleFiles) {
  const TempDir dir;
  dir.write("w.safetensors", one_tensor("a", "aaaa"));
  dir.write("w.bin", "PK\x03\x04 anything");
  dir.write("w.txt", "text");
  EXPECT_EQ(opened(dir.path() / "w.safetensors").files[0].kind, FileKind::safetensors);
  const Checkpoint opaque = opened(dir.path() / "w.bin");
  EXPECT_EQ(opaque.files[0].kind, FileKind::opaque);
  EXPECT_THAT(opaque.files[0].tensors, IsEmpty());
  EXPECT_EQ(opaque.dtype, "");
  EXPECT_EQ(refused(dir.path() / "w.txt").reason, Reason::invalid);
}

TEST(OpenCheckpoint, LeavesOutWhatEnginesLeaveOut) {
  const TempDir dir;
  write_sharded(dir);
  dir.write("consolidated.safetensors", one_tensor("a", "aaaa"));
  dir.write("mtp.safetensors", one_tensor("mtp.a", "mmmm"));
  dir.write("pytorch_model.bin", "PK");
  dir.write("old.pt", "PK");
  dir.write("tf_model.h5", "HDF");
  dir.write("original/consolidated.00.pth", "PK");
  dir.write("original/params.json", "{}");
  dir.write("sub/mtp.safetensors", "not even looked at");
  for (const char* skipped :
       {".git/config", ".cache/huggingface/x.metadata", ".wcache/manifest", "code/.git"})
    dir.write(skipped, "x");
  const Checkpoint checkpoint = opened(dir.path());
  EXPECT_THAT(
      names(checkpoint),
      ElementsAre("code/modeling.py", "config.json", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", kIndex, "mtp.safetensors", "original/params.json"));
  EXPECT_THAT(left_out(checkpoint),
              ElementsAre(HasSubstr(".cache: a download tool"), HasSubstr(".git: version control"),
                          HasSubstr(".wcache: "), HasSubstr("code/.git: version control"),
                          "consolidated.safetensors: not named by model.safetensors.index.json",
                          "old.pt: safetensors are there, which engines prefer",
                          "original/consolidated.00.pth: weights in a sub-directory that no index names",
                          "pytorch_model.bin: safetensors are there, which engines prefer",
                          "sub/mtp.safetensors: weights in a sub-directory that no index names",
                          "tf_model.h5: not named by model.safetensors.index.json"));
}

TEST(OpenCheckpoint, WithoutAnIndexEverySafetensorsFileIsServed) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  dir.write("extra.safetensors", one_tensor("b", "bbbb"));
  dir.write("training_args.bin", "PK");
  dir.write("notes.gguf.txt", "x");
  EXPECT_THAT(names(opened(dir.path())),
              ElementsAre("extra.safetensors", "model.safetensors", "notes.gguf.txt"));
}

TEST(OpenCheckpoint, TorchFilesAreServedWhereThereAreNoSafetensors) {
  const TempDir dir;
  dir.write("pytorch_model-1.bin", "PK");
  dir.write("pytorch_model-2.bin", "PK");
  dir.write("pytorch_model.bin.index.json",
            index_of(R"("a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin")"));
  EXPECT_THAT(names(opened(dir.path())),
              ElementsAre("pytorch_model-1.bin", "pytorch_model-2.bin", "pytorch_model.bin.index.json"));
  fs::remove(dir.path() / "pytorch_model-2.bin");
  EXPECT_THAT(refused(dir.path()).message, HasSubstr("pytorch_model-2.bin"));
  dir.write("model.safetensors", one_tensor("a", "aaaa"));  // now the torch index counts no more
  EXPECT_THAT(names(opened(dir.path())), ElementsAre("model.safetensors", "pytorch_model.bin.index.json"));
}

TEST(OpenCheckpoint, MistralsIndexCountsWhereItsFilesAreAllThereIs) {
  const TempDir dir;
  dir.write("consolidated-1.safetensors", one_tensor("a", "aaaa"));
  dir.write("consolidated-old.safetensors", one_tensor("a", "aaaa"));
  dir.write("consolidated.safetensors.index.json", index_of(R"("a": "consolidated-1.safetensors")"));
  EXPECT_THAT(names(opened(dir.path())),
              ElementsAre("consolidated-1.safetensors", "consolidated.safetensors.index.json"));
  dir.write("model.safetensors", one_tensor("b", "bbbb"));
  fs::remove(dir.path() / "consolidated-old.safetensors");
  EXPECT_THAT(
      names(opened(dir.path())),
      ElementsAre("consolidated-1.safetensors", "consolidated.safetensors.index.json", "model.safetensors"));
}

TEST(OpenCheckpoint, AnIndexMayNameWeightsInSubDirectories) {
  const TempDir dir;
  dir.write("parts/x.safetensors", one_tensor("a", "aaaa"));
  dir.write("parts/y.safetensors", one_tensor("b", "bbbb"));
  dir.write(kIndex, index_of(R"("a": "./parts/x.safetensors")"));
  const Checkpoint checkpoint = opened(dir.path());
  EXPECT_THAT(names(checkpoint), ElementsAre(kIndex, "parts/x.safetensors"));
  EXPECT_THAT(left_out(checkpoint), ElementsAre(HasSubstr("parts/y.safetensors")));
}

TEST(OpenCheckpoint, TheIndexDecidesBetweenTwoShards) {
  const TempDir dir;
  const std::string both =
      "{\"a\":" + entry("U8", "[4]", "[0,4]") + ",\"b\":" + entry("U8", "[4]", "[4,8]") + "}";
  dir.write("model-1.safetensors", safetensors(both, "aaaabbbb"));
  dir.write("model-2.safetensors", one_tensor("b", "BBBB"));
  dir.write(kIndex, index_of(R"("a": "model-1.safetensors", "b": "model-2.safetensors")"));
  const Checkpoint checkpoint = opened(dir.path());
  const std::vector<TensorInfo>& tensors = file(checkpoint, "model-1.safetensors").tensors;
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_FALSE(tensors[0].shadowed);
  EXPECT_TRUE(tensors[1].shadowed);
  EXPECT_FALSE(file(checkpoint, "model-2.safetensors").tensors[0].shadowed);

  const EntryPlan plan = plan_checkpoint(checkpoint, Role::target);
  ASSERT_EQ(plan.images.size(), 3u);
  EXPECT_EQ(plan.images[0].name, "model-1.safetensors");
  EXPECT_EQ(plan.images[0].tensors.size(), 1u);   // a name means one tensor
  EXPECT_EQ(plan.images[0].segments.size(), 3u);  // but what is hashed depends on the file alone

  dir.write("model-1.safetensors", one_tensor("a", "aaaa"));
  dir.write("model-2.safetensors", safetensors("{\"b\":" + entry("U8", "[4]", "[0,4]") +
                                                   ",\"c\":" + entry("U8", "[4]", "[4,8]") + "}",
                                               "bbbbcccc"));
  EXPECT_TRUE(open_checkpoint(dir.path()));  // a tensor that the index does not know
  dir.write("mtp.safetensors", one_tensor("c", "CCCC"));
  EXPECT_THAT(refused(dir.path()).message, AllOf(HasSubstr("'c'"), HasSubstr("model-2.safetensors"),
                                                 HasSubstr("mtp.safetensors"), HasSubstr(kIndex)));
}

TEST(OpenCheckpoint, NamesMayRepeatAcrossRanksAndAcrossGgufs) {
  const TempDir ranks;
  ranks.write("model-rank-0-part-0.safetensors", one_tensor("a", "aaaa"));
  ranks.write("model-rank-0-part-1.safetensors", one_tensor("b", "bbbb"));
  ranks.write("model-rank-1-part-0.safetensors", one_tensor("a", "AAAA"));
  const Checkpoint checkpoint = opened(ranks.path());
  EXPECT_FALSE(checkpoint.files[0].tensors[0].shadowed);
  EXPECT_TRUE(checkpoint.files[2].tensors[0].shadowed);
  ranks.write("model-rank-0-part-1.safetensors", one_tensor("a", "aaaa"));
  EXPECT_THAT(refused(ranks.path()).message, HasSubstr("model-rank-0-part-1.safetensors"));
}

TEST(OpenCheckpoint, LinksToDirectories) {
  const TempDir dir, elsewhere;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  dir.write("tokenizer/vocab.txt", "x");
  elsewhere.write("secret.txt", "x");
  fs::create_directory_symlink("tokenizer", dir.path() / "tok");
  fs::create_directory_symlink("..", dir.path() / "tokenizer" / "up");
  fs::create_directory_symlink(elsewhere.path(), dir.path() / "away");
  const Checkpoint checkpoint = opened(dir.path());
  EXPECT_THAT(names(checkpoint), ElementsAre("model.safetensors", "tok/vocab.txt", "tokenizer/vocab.txt"));
  EXPECT_THAT(left_out(checkpoint),
              ElementsAre("away: a symbolic link to a directory outside of the checkpoint",
                          "tok/up: a symbolic link to a directory that it lies in",
                          "tokenizer/up: a symbolic link to a directory that it lies in"));
}

TEST(OpenCheckpoint, BrokenLinks) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  fs::create_symlink("not/here", dir.path() / "old.bin");
  EXPECT_THAT(left_out(opened(dir.path())), ElementsAre(HasSubstr("old.bin")));  // it is not missed
  fs::create_symlink("../blobs/c0ffee", dir.path() / "tokenizer.json");
  const Error broken = refused(dir.path());
  EXPECT_EQ(broken.reason, Reason::corrupt);
  EXPECT_THAT(broken.message, AllOf(HasSubstr("tokenizer.json"), HasSubstr("../blobs/c0ffee")));
  EXPECT_THAT(broken.hint, HasSubstr("download"));
  fs::remove(dir.path() / "tokenizer.json");
  fs::create_symlink("b.json", dir.path() / "a.json");
  fs::create_symlink("a.json", dir.path() / "b.json");
  EXPECT_THAT(refused(dir.path()).message, AllOf(HasSubstr("a.json"), HasSubstr("back to itself")));
}

TEST(OpenCheckpoint, WhatIsNoFile) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  ASSERT_EQ(mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  const Fd listener = Fd::adopt(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (dir.path() / "sock").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(left_out(opened(dir.path())),
              ElementsAre("pipe: a FIFO, not a file", "sock: a socket, not a file"));

  ASSERT_EQ(mkfifo((dir.path() / "more.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(refused(dir.path()).message, HasSubstr("'more.safetensors' is a FIFO"));
  fs::remove(dir.path() / "more.safetensors");
  fs::create_directory(dir.path() / "more.safetensors");
  EXPECT_THAT(refused(dir.path()).message, HasSubstr("'more.safetensors' is a directory"));
  EXPECT_THAT(refused("/dev/null").message, HasSubstr("neither a directory nor a file"));
}

TEST(OpenCheckpoint, PathsThatAreNone) {
  const TempDir dir;
  const auto hint_of = [](const fs::path& path) {
    const Error error = refused(path);
    EXPECT_EQ(error.reason, Reason::invalid);
    EXPECT_EQ(error.key, "MODEL");
    return error.message + "; " + error.hint;
  };
  EXPECT_THAT(hint_of("acme/MiMo-7B"),
              AllOf(HasSubstr("acme/MiMo-7B"), HasSubstr("hf download acme/MiMo-7B")));
  EXPECT_THAT(hint_of("https://huggingface.co/acme/MiMo-7B"), HasSubstr("download the model first"));
  EXPECT_THAT(hint_of(dir.path() / "missing"), HasSubstr("there is no file or directory"));
  EXPECT_THAT(hint_of("/etc/passwd/x"), HasSubstr("there is no file or directory"));
  EXPECT_THAT(hint_of(""), HasSubstr("empty"));
  EXPECT_THAT(hint_of(dir.path()), HasSubstr("empty directory"));
  dir.write("unet/x.safetensors", one_tensor("a", "aaaa"));
  EXPECT_THAT(hint_of(dir.path()), AllOf(HasSubstr("no weights"), HasSubstr("unet/x.safetensors")));
}

TEST(OpenCheckpoint, NamesThatAreNotUtf8) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  dir.write("\xff.txt", "x");
  EXPECT_THAT(names(opened(dir.path())), ElementsAre("model.safetensors", "\xff.txt"));
  dir.write("\xfe.safetensors", "x");
  EXPECT_THAT(refused(dir.path()).message, HasSubstr("HeaderTooSmall: ?.safetensors"));
}

/// The effective user is another while it lives, so that permissions count for root as well.
class AsNobody {
 public:
  AsNobody() : was_root_(geteuid() == 0 && seteuid(65534) == 0) {}
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
  ~AsNobody() {
    if (was_root_ && seteuid(0) != 0) std::abort();
  }

 private:
  bool was_root_;
};

TEST(OpenCheckpoint, WhatMayNotBeRead) {
  const TempDir dir;
  write_sharded(dir);
  fs::permissions(dir.path(), fs::perms(0755));
  {
    const AsNobody nobody;
    EXPECT_TRUE(open_checkpoint(dir.path()));
  }
  const auto denied_at = [&](const fs::path& name) {
    fs::permissions(dir.path() / name, fs::perms::none);
    Error error;
    {
      const AsNobody nobody;
      error = refused(dir.path());
    }
    fs::permissions(dir.path() / name, fs::perms(0755));
    EXPECT_EQ(error.reason, Reason::denied) << error.message;
    return error.message;
  };
  EXPECT_THAT(denied_at("model-00002-of-00002.safetensors"), HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_THAT(denied_at("config.json"), HasSubstr("config.json"));
  EXPECT_THAT(denied_at(kIndex), HasSubstr(kIndex));
  EXPECT_THAT(denied_at("code"), HasSubstr("code"));
  EXPECT_THAT(denied_at(""), HasSubstr(dir.path().string()));
}

TEST(OpenCheckpoint, Index) {
  const TempDir dir;
  const auto with_index = [&dir](std::string_view text) {
    dir.write(kIndex, text);
    const Error error = refused(dir.path());
    EXPECT_EQ(error.reason, Reason::corrupt) << error.message;
    EXPECT_THAT(error.message, HasSubstr(kIndex));
    return error.message;
  };
  write_sharded(dir);
  EXPECT_THAT(with_index(""), HasSubstr("not JSON"));
  EXPECT_THAT(with_index("{"), HasSubstr("not JSON"));
  EXPECT_THAT(with_index("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(with_index("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(with_index(R"({"weight_map": []})"), HasSubstr("weight_map"));
  EXPECT_THAT(with_index(index_of("")), HasSubstr("weight_map is empty"));
  EXPECT_THAT(with_index(index_of(R"("a": 1)")), HasSubstr("'a' is not a string"));
  EXPECT_THAT(with_index(index_of(R"("a": "x.safetensors", "a": "x.safetensors")")),
              HasSubstr("'a' is there twice"));
  for (const char* outside :
       {"/etc/passwd", "../x.safetensors", "a/../../x.safetensors", "", ".", "a/", "a\\u0000b"})
    EXPECT_THAT(with_index(index_of(R"("a": ")" + std::string(outside) + "\"")),
                HasSubstr("no file of the checkpoint"))
        << outside;
  EXPECT_THAT(with_index(index_of(R"("a": "config.json")")), HasSubstr("'config.json' as weights"));
  EXPECT_THAT(with_index(index_of(R"("a": "model-3.safetensors")")),
              HasSubstr("model-3.safetensors (for tensor 'a'), which is not there"));
  EXPECT_THAT(with_index(index_of(R"("z": "model-00001-of-00002.safetensors")")), HasSubstr("'z'"));
  EXPECT_THAT(with_index(index_of(
                  R"("a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors")")),
              AllOf(HasSubstr("'b'"), HasSubstr("which does not hold it")));
  EXPECT_THAT(with_index(index_of(
                  R"("a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors")")),
              AllOf(HasSubstr("'a'"), HasSubstr("model-00001-of-00002.safetensors does")));
  dir.write(".cache/x.safetensors", one_tensor("a", "aaaa"));
  EXPECT_THAT(with_index(index_of(R"("a": ".cache/x.safetensors")")),
              HasSubstr(".cache is a download tool's"));
}

TEST(OpenCheckpoint, WeightsThatAreNone) {
  const TempDir dir;
  dir.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
  EXPECT_THAT(refused(dir.path()).message,
              AllOf(HasSubstr("HeaderTooLarge"), HasSubstr("model.safetensors is a Git-LFS pointer")));
  fs::remove(dir.path() / "model.safetensors");
  dir.write("pytorch_model.bin", "<!DOCTYPE html>");
  const Error error = refused(dir.path());
  EXPECT_EQ(error.reason, Reason::corrupt);
  EXPECT_THAT(error.message, HasSubstr("pytorch_model.bin is an HTML page"));
}

TEST(OpenCheckpoint, Config) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", "aaaa"));
  dir.write("config.json",
            R"({"architectures": ["Qwen3VL"], "limit": [0.0, Infinity, -Infinity, NaN], "s": "\"NaN",
      "text_config": {"architectures": ["Inner"], "dtype": "torch.float16", "quantization_config": {"quant_method": "fp8"}}})");
  const Checkpoint checkpoint = opened(dir.path());
  EXPECT_EQ(checkpoint.architecture, "Qwen3VL");
  EXPECT_EQ(checkpoint.dtype, "float16");
  EXPECT_EQ(checkpoint.quantization, "fp8");
  dir.write("config.json",
            R"({"architectures": "x", "dtype": 5, "quantization_config": null, "text_config": []})");
  EXPECT_EQ(opened(dir.path()).architecture, "");
  EXPECT_EQ(opened(dir.path()).dtype, "U8");
  for (const char* bad : {"", "{", "[]", "{\"a\": Nan}", "version https://git-lfs.github.com/spec/v1"}) {
    dir.write("config.json", bad);
    const Error error = refused(dir.path());
    EXPECT_EQ(error.reason, Reason::corrupt);
    EXPECT_THAT(error.message, HasSubstr("config.json: not"));
  }
}

}  // namespace
}  // namespace wcache
