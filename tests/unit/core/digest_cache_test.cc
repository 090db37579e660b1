#include "core/digest_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "tests/unit/core/temp_dir.h"

namespace wcache {
namespace {

using ::testing::HasSubstr;
using ::wcache::testing::read_file;
using ::wcache::testing::TempDir;
using ::wcache::testing::write_file;

const Digest kSubject = digest_of("subject");
const Digest kDigest = digest_of("digest");

std::vector<DigestCache::Row> one_row() {
  return {{kSubject, kDigest, 7, "model/config.json"}};
}

std::filesystem::path database(const TempDir& dir) {
  return dir / "digests.sqlite";
}

Environment environment(std::map<std::string, std::string, std::less<>> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto at = variables.find(std::string_view(name));
    return at == variables.end() ? nullptr : at->second.c_str();
  };
}

/// Runs SQL on the database as another program would.
void tamper(const TempDir& dir, const char* sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(database(dir).c_str(), &handle), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(handle);
  sqlite3_close(handle);
}

TEST(DigestCacheDir, FollowsTheEnvironment) {
  EXPECT_EQ(digest_cache_dir(environment({{"WCACHE_CACHE_DIR", "/c"}, {"XDG_CACHE_HOME", "/x"}}), 0).value(),
            "/c");
  EXPECT_EQ(digest_cache_dir(environment({{"XDG_CACHE_HOME", "/x"}}), 0).value(), "/var/cache/wcache");
  EXPECT_EQ(digest_cache_dir(environment({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}), 1000).value(),
            "/x/wcache");
  EXPECT_EQ(digest_cache_dir(environment({{"HOME", "/h"}}), 1000).value(), "/h/.cache/wcache");
  EXPECT_EQ(digest_cache_dir(environment({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/h"}}), 1000).value(),
            "/h/.cache/wcache");
  EXPECT_EQ(digest_cache_dir(environment({}), 1000).error().reason, Reason::invalid);
  EXPECT_EQ(digest_cache_dir(environment({{"WCACHE_CACHE_DIR", "c"}}), 0).error().key, "WCACHE_CACHE_DIR");
}

TEST(DigestCache, RemembersBeyondTheProcess) {
  const TempDir dir;
  {
    DigestCache cache = DigestCache::open(dir.path());
    EXPECT_FALSE(cache.find(kSubject, 7));
    cache.remember(one_row());
    EXPECT_EQ(cache.find(kSubject, 7), kDigest);
    EXPECT_FALSE(cache.trouble());
  }
  DigestCache cache = DigestCache::open(dir.path());
  EXPECT_EQ(cache.find(kSubject, 7), kDigest);
  EXPECT_FALSE(cache.find(kSubject, 8)) << "another size";
  EXPECT_FALSE(cache.find(kDigest, 7)) << "another subject";
}

TEST(DigestCache, MakesItsDirectoryPrivate) {
  const TempDir dir;
  const auto below = dir / "a/b";
  DigestCache::open(below).remember(one_row());
  struct stat st {};
  ASSERT_EQ(stat(below.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0700u);
  ASSERT_EQ(stat((below / "digests.sqlite").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0600u);
}

TEST(DigestCache, WithoutDatabaseRemembersNothing) {
  DigestCache cache;
  cache.remember(one_row());
  EXPECT_FALSE(cache.find(kSubject, 7));
  EXPECT_FALSE(cache.trouble());
}

TEST(DigestCache, RowThatWasChangedIsNotBelieved) {
  for (const char* sql : {"UPDATE digests SET digest = zeroblob(16)", "UPDATE digests SET digest = 'short'",
                          "UPDATE digests SET seal = zeroblob(16)", "UPDATE digests SET seal = 5"}) {
    const TempDir dir;
    DigestCache::open(dir.path()).remember(one_row());
    tamper(dir, sql);
    DigestCache cache = DigestCache::open(dir.path());
    EXPECT_FALSE(cache.find(kSubject, 7)) << sql;
    cache.remember(one_row());
    EXPECT_EQ(cache.find(kSubject, 7), kDigest) << "it can be remembered anew";
  }
}

TEST(DigestCache, ForeignDatabaseIsLeftAlone) {
  const TempDir dir;
  tamper(dir, "CREATE TABLE digests (mine TEXT); INSERT INTO digests VALUES ('precious')");
  const std::string before = read_file(database(dir));
  DigestCache cache = DigestCache::open(dir.path());
  cache.remember(one_row());
  EXPECT_FALSE(cache.find(kSubject, 7));
  ASSERT_TRUE(cache.trouble());
  EXPECT_EQ(cache.trouble()->reason, Reason::corrupt);
  EXPECT_THAT(cache.trouble()->message, HasSubstr(database(dir).string()));
  tamper(dir, "INSERT INTO digests VALUES ('still a table of one column')");
}

TEST(DigestCache, NewerSchemaIsLeftAlone) {
  const TempDir dir;
  DigestCache::open(dir.path()).remember(one_row());
  tamper(dir, "PRAGMA user_version = 2");
  DigestCache cache = DigestCache::open(dir.path());
  EXPECT_FALSE(cache.find(kSubject, 7));
  ASSERT_TRUE(cache.trouble());
  EXPECT_EQ(cache.trouble()->reason, Reason::version);
}

TEST(DigestCache, MissingTableIsTroubleNotFailure) {
  const TempDir dir;
  DigestCache::open(dir.path()).remember(one_row());
  tamper(dir, "ALTER TABLE digests RENAME TO elsewhere");
  DigestCache cache = DigestCache::open(dir.path());
  EXPECT_FALSE(cache.find(kSubject, 7));
  EXPECT_TRUE(cache.trouble());
  cache.remember(one_row());
}

TEST(DigestCache, DamagedFileIsTroubleNotFailure) {
  const TempDir dir;
  write_file(database(dir), std::string(8192, 'x'));
  ASSERT_EQ(chmod(database(dir).c_str(), 0600), 0);
  DigestCache cache = DigestCache::open(dir.path());
  cache.remember(one_row());
  EXPECT_FALSE(cache.find(kSubject, 7));
  ASSERT_TRUE(cache.trouble());
  EXPECT_EQ(cache.trouble()->reason, Reason::corrupt);
  EXPECT_THAT(cache.trouble()->hint, HasSubstr("remove"));
}

TEST(DigestCache, DamageAnywhereNeverGivesAnotherDigest) {
  const TempDir dir;
  {
    DigestCache cache = DigestCache::open(dir.path());
    std::vector<DigestCache::Row> rows;
    for (int i = 0; i < 200; ++i)
      rows.push_back({digest_of("s" + std::to_string(i)), digest_of("d" + std::to_string(i)), 7, "name"});
    cache.remember(rows);
  }
  const std::string good = read_file(database(dir));
  int remembered = 0;
  for (std::size_t at = 0; at < good.size(); at += 97) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
    std::filesystem::remove(dir / "digests.sqlite-wal");
    std::filesystem::remove(dir / "digests.sqlite-shm");
    write_file(database(dir), bad);
    DigestCache cache = DigestCache::open(dir.path());
    for (int i = 0; i < 200; i += 20) {
      const auto found = cache.find(digest_of("s" + std::to_string(i)), 7);
      if (found) {
        ++remembered;
        ASSERT_EQ(*found, digest_of("d" + std::to_string(i))) << "byte " << at;
      }
    }
  }
  EXPECT_GT(remembered, 100) << "nothing was looked at";
}

TEST(DigestCache, LockedDatabaseIsTroubleWithinTheDeadline) {
  const TempDir dir;
  DigestCache::open(dir.path()).remember(one_row());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(database(dir).c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);

  DigestCache cache = DigestCache::open(dir.path(), std::chrono::milliseconds(50));
  EXPECT_EQ(cache.find(kSubject, 7), kDigest) << "a writer does not keep readers out";
  const auto begin = std::chrono::steady_clock::now();
  cache.remember(one_row());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  ASSERT_TRUE(cache.trouble());
  EXPECT_EQ(cache.trouble()->reason, Reason::busy);
  sqlite3_close(other);
}

TEST(DigestCache, WhatOthersCanWriteIsNotUsed) {
  const TempDir dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  DigestCache cache = DigestCache::open(dir.path());
  ASSERT_TRUE(cache.trouble());
  EXPECT_EQ(cache.trouble()->reason, Reason::denied);
  ASSERT_EQ(chmod(dir.path().c_str(), 0700), 0);
  DigestCache::open(dir.path()).remember(one_row());
  ASSERT_EQ(chmod(database(dir).c_str(), 0666), 0);
  EXPECT_FALSE(DigestCache::open(dir.path()).find(kSubject, 7));
}

TEST(DigestCache, LinkInPlaceOfTheDatabaseIsNotFollowed) {
  const TempDir dir;
  const TempDir elsewhere;
  DigestCache::open(elsewhere.path()).remember(one_row());
  std::filesystem::create_symlink(database(elsewhere), database(dir));
  DigestCache cache = DigestCache::open(dir.path());
  EXPECT_FALSE(cache.find(kSubject, 7));
  EXPECT_TRUE(cache.trouble());
}

TEST(DigestCache, PlaceThatCannotBeIsTroubleNotFailure) {
  const TempDir dir;
  write_file(dir / "file", "");
  for (const auto& place : {dir / "file", dir / "file/below", std::filesystem::path("/proc/nowhere")}) {
    DigestCache cache = DigestCache::open(place);
    cache.remember(one_row());
    EXPECT_FALSE(cache.find(kSubject, 7));
    EXPECT_TRUE(cache.trouble()) << place;
  }
}

TEST(DigestCache, ProcessesShareIt) {
  const TempDir dir;
  constexpr int kProcesses = 4;
  constexpr int kRows = 25;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      DigestCache cache = DigestCache::open(dir.path(), std::chrono::seconds(20));
      for (int i = 0; i < kRows; ++i) {
        const std::string name = std::to_string(p) + "/" + std::to_string(i);
        cache.remember(
            std::vector<DigestCache::Row>{{digest_of("s" + name), digest_of("d" + name), 1, name}});
      }
      _exit(cache.trouble() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  DigestCache cache = DigestCache::open(dir.path());
  for (int p = 0; p < kProcesses; ++p)
    for (int i = 0; i < kRows; ++i) {
      const std::string name = std::to_string(p) + "/" + std::to_string(i);
      EXPECT_EQ(cache.find(digest_of("s" + name), 1), digest_of("d" + name)) << name;
    }
}

}  // namespace
}  // namespace wcache
