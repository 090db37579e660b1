#include "core/digest_cache.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "core/fd.h"

namespace wcache {
namespace {

constexpr const char* kFileName = "digests.sqlite";
constexpr std::chrono::milliseconds kBetweenTries{10};

// PRAGMA application_id: "WCDC". Together with user_version it tells our database from a foreign or newer
// one.
constexpr int kApplicationId = 0x57434443;
constexpr int kSchemaVersion = 1;
// About 15 MB; the oldest rows go first.
constexpr int kMaxRows = 100'000;

constexpr const char* kSchema = R"(
  CREATE TABLE digests (
    subject BLOB PRIMARY KEY NOT NULL,
    digest BLOB NOT NULL,
    nbytes INTEGER NOT NULL,
    seal BLOB NOT NULL,
    name TEXT NOT NULL,
    remembered INTEGER NOT NULL
  ) WITHOUT ROWID;
  CREATE INDEX digests_by_age ON digests (remembered);
)";

using Blob = std::array<unsigned char, 16>;

Blob to_blob(const Digest& digest) {
  Blob blob;
  for (std::size_t i = 0; i < 8; ++i) {
    blob[i] = static_cast<unsigned char>(digest.high >> (56 - 8 * i));
    blob[8 + i] = static_cast<unsigned char>(digest.low >> (56 - 8 * i));
  }
  return blob;
}

Digest from_blob(const unsigned char* bytes) {
  Digest digest;
  for (std::size_t i = 0; i < 8; ++i) {
    digest.high = digest.high << 8 | bytes[i];
    digest.low = digest.low << 8 | bytes[8 + i];
  }
  return digest;
}

/// What a row must carry to be believed: a page that rotted on disk would otherwise be another fingerprint.
Digest seal_of(const Digest& subject, const Digest& digest, std::uint64_t nbytes) {
  return digest_of("wcache-digest " + to_hex(subject) + " " + to_hex(digest) + " " + std::to_string(nbytes));
}

/// Others who can write the database could plant digests.
Status check_private(const struct stat& st, const std::string& path) {
  if (st.st_uid != geteuid())
    return fail(Reason::denied, path + " belongs to user " + std::to_string(st.st_uid) + ", not to us",
                "set WCACHE_CACHE_DIR to a directory of your own");
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(Reason::denied, path + " is writable by others", "chmod go-w " + path);
  return {};
}

Status prepare_directory(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir.parent_path(), error);
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("making " + dir.string(), errno);
  struct stat st {};
  if (stat(dir.c_str(), &st) != 0) return fail_errno("looking at " + dir.string(), errno);
  if (!S_ISDIR(st.st_mode)) return fail(Reason::io, dir.string() + " is no directory");
  return check_private(st, dir.string());
}

/// SQLite would make the file with the mode that the umask leaves.
Status prepare_file(const std::filesystem::path& path) {
  const Result<Fd> file = open_file(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (!file) return fail(file.error());
  struct stat st {};
  if (fstat(file->get(), &st) != 0) return fail_errno("looking at " + path.string(), errno);
  if (!S_ISREG(st.st_mode)) return fail(Reason::io, path.string() + " is no regular file");
  return check_private(st, path.string());
}

}  // namespace

struct DigestCache::Database {
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

  std::string path;
  std::unique_ptr<sqlite3, Close> handle;

  Error error(std::string_view doing) const {
    const int code = sqlite3_extended_errcode(handle.get());
    std::string message = path + ": " + std::string(doing) + ": " + sqlite3_errmsg(handle.get());
    switch (code & 0xff) {
      case SQLITE_BUSY:
        return {Reason::busy, std::move(message), "another process holds the digest cache"};
      case SQLITE_CORRUPT:
      case SQLITE_NOTADB:
        return {Reason::corrupt, std::move(message), "remove " + path + "; it will be made anew"};
      default:
        return {Reason::io, std::move(message), {}};
    }
  }

  Status run(const char* sql, std::string_view doing) {
    if (sqlite3_exec(handle.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return fail(error(doing));
    return {};
  }

  Result<Statement> prepare(const char* sql, std::string_view doing) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(handle.get(), sql, -1, &statement, nullptr) != SQLITE_OK)
      return fail(error(doing));
    return Statement(statement);
  }

  Result<std::int64_t> number(const char* sql, std::string_view doing) {
    const Result<Statement> statement = prepare(sql, doing);
    if (!statement) return fail(statement.error());
    if (sqlite3_step(statement->get()) != SQLITE_ROW) return fail(error(doing));
    return sqlite3_column_int64(statement->get(), 0);
  }

  Status open(std::chrono::milliseconds patience) {
    sqlite3* raw = nullptr;
    const int opened = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr);
    handle.reset(raw);
    if (opened != SQLITE_OK) return fail(error("opening"));
    sqlite3_busy_timeout(raw, static_cast<int>(patience.count()));
    // Numbers and text of a foreign file are data to SQLite, its schema is not.
    sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    if (Status mode = run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL", "choosing the journal");
        !mode)
      return mode;
    return check_schema();
  }

  Status check_schema() {
    const Result<std::int64_t> tables = number("SELECT count(*) FROM sqlite_schema", "reading the schema");
    if (!tables) return fail(tables.error());
    if (*tables == 0)
      if (Status made = make_schema(); !made) return made;
    const Result<std::int64_t> id = number("PRAGMA application_id", "reading the schema");
    const Result<std::int64_t> version = number("PRAGMA user_version", "reading the schema");
    if (!id || !version) return fail(id ? version.error() : id.error());
    if (*id != kApplicationId)
      return fail(Reason::corrupt, path + " is a database of another program",
                  "move it away, or set WCACHE_CACHE_DIR");
    if (*version != kSchemaVersion)
      return fail(Reason::version,
                  path + " has schema version " + std::to_string(*version) + ", not " +
                      std::to_string(kSchemaVersion),
                  "remove it; it will be made anew");
    return {};
  }

  /// Two processes may meet here with a fresh file: the second finds what the first has made.
  Status make_schema() {
    if (Status begun = run("BEGIN IMMEDIATE", "locking"); !begun) return begun;
    const Result<std::int64_t> tables = number("SELECT count(*) FROM sqlite_schema", "reading the schema");
    if (!tables) return fail(tables.error());
    if (*tables == 0) {
      const std::string marks = "PRAGMA application_id = " + std::to_string(kApplicationId) +
                                "; PRAGMA user_version = " + std::to_string(kSchemaVersion);
      if (Status made = run(kSchema, "making the table"); !made) return made;
      if (Status marked = run(marks.c_str(), "marking the database"); !marked) return marked;
    }
    return run("COMMIT", "making the table");
  }

  /// Empty when there is no such row, or one that is not to be believed.
  Result<std::optional<Digest>> find(const Digest& subject, std::uint64_t nbytes) {
    constexpr std::string_view kDoing = "looking a digest up";
    const Result<Statement> statement =
        prepare("SELECT digest, seal FROM digests WHERE subject = ?1 AND nbytes = ?2", kDoing);
    if (!statement) return fail(statement.error());
    sqlite3_stmt* row = statement->get();
    const Blob key = to_blob(subject);
    sqlite3_bind_blob(row, 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
    sqlite3_bind_int64(row, 2, static_cast<sqlite3_int64>(nbytes));
    const int stepped = sqlite3_step(row);
    if (stepped == SQLITE_DONE) return std::optional<Digest>();
    if (stepped != SQLITE_ROW) return fail(error(kDoing));
    const auto blob = [&](int column) -> std::optional<Digest> {
      if (sqlite3_column_bytes(row, column) != static_cast<int>(sizeof(Blob))) return std::nullopt;
      return from_blob(static_cast<const unsigned char*>(sqlite3_column_blob(row, column)));
    };
    const std::optional<Digest> digest = blob(0);
    const std::optional<Digest> seal = blob(1);
    if (!digest || !seal || *seal != seal_of(subject, *digest, nbytes)) return std::optional<Digest>();
    return digest;
  }

  Status insert(std::span<const Row> rows) {
    constexpr std::string_view kDoing = "remembering a digest";
    if (Status begun = run("BEGIN IMMEDIATE", "locking"); !begun) return begun;
    const Result<Statement> statement =
        prepare("INSERT OR REPLACE INTO digests VALUES (?1, ?2, ?3, ?4, ?5, unixepoch())", kDoing);
    if (!statement) return fail(statement.error());
    sqlite3_stmt* insertion = statement->get();
    for (const Row& row : rows) {
      const Blob subject = to_blob(row.subject);
      const Blob digest = to_blob(row.digest);
      const Blob seal = to_blob(seal_of(row.subject, row.digest, row.nbytes));
      sqlite3_bind_blob(insertion, 1, subject.data(), sizeof(Blob), SQLITE_STATIC);
      sqlite3_bind_blob(insertion, 2, digest.data(), sizeof(Blob), SQLITE_STATIC);
      sqlite3_bind_int64(insertion, 3, static_cast<sqlite3_int64>(row.nbytes));
      sqlite3_bind_blob(insertion, 4, seal.data(), sizeof(Blob), SQLITE_STATIC);
      sqlite3_bind_text(insertion, 5, row.name.data(), static_cast<int>(row.name.size()), SQLITE_STATIC);
      if (sqlite3_step(insertion) != SQLITE_DONE) return fail(error(kDoing));
      sqlite3_reset(insertion);
    }
    const std::string prune =
        "DELETE FROM digests WHERE subject IN (SELECT subject FROM digests ORDER BY remembered DESC LIMIT -1 "
        "OFFSET " +
        std::to_string(kMaxRows) + ")";
    if (Status pruned = run(prune.c_str(), "dropping the oldest digests"); !pruned) return pruned;
    return run("COMMIT", kDoing);
  }
};

Result<std::filesystem::path> digest_cache_dir(const Environment& environment, std::uint32_t uid) {
  const auto absolute = [&](const char* name) -> std::filesystem::path {
    const char* value = environment(name);
    std::filesystem::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (const char* chosen = environment("WCACHE_CACHE_DIR"); chosen != nullptr && *chosen != '\0') {
    if (*chosen == '/') return std::filesystem::path(chosen);
    return fail(Reason::invalid, "WCACHE_CACHE_DIR is not an absolute path: " + std::string(chosen),
                "set it to an absolute path", "WCACHE_CACHE_DIR");
  }
  if (uid == 0) return std::filesystem::path("/var/cache/wcache");
  if (const auto xdg = absolute("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "wcache";
  if (const auto home = absolute("HOME"); !home.empty()) return home / ".cache" / "wcache";
  return fail(Reason::invalid,
              "there is no place for the digest cache: neither XDG_CACHE_HOME nor HOME is set",
              "set WCACHE_CACHE_DIR", "WCACHE_CACHE_DIR");
}

DigestCache::DigestCache() = default;
DigestCache::DigestCache(DigestCache&&) noexcept = default;
DigestCache& DigestCache::operator=(DigestCache&&) noexcept = default;
DigestCache::~DigestCache() = default;

DigestCache DigestCache::open(const std::filesystem::path& dir, std::chrono::milliseconds patience) {
  DigestCache cache;
  auto database = std::make_unique<Database>();
  database->path = (dir / kFileName).string();
  Status ready = prepare_directory(dir);
  if (ready) ready = prepare_file(database->path);
  if (ready) ready = database->open(patience);
  // SQLite does not wait for the lock that changes a new database's journal: several first users of one wait here.
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!ready && ready.error().reason == Reason::busy && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kBetweenTries);
    auto again = std::make_unique<Database>();
    again->path = database->path;
    database = std::move(again);
    ready = database->open(patience);
  }
  if (ready)
    cache.database_ = std::move(database);
  else
    cache.trouble_ = std::move(ready.error());
  return cache;
}

void DigestCache::give_up(Error error) {
  database_.reset();
  if (!trouble_) trouble_ = std::move(error);
}

std::optional<Digest> DigestCache::find(const Digest& subject, std::uint64_t nbytes) {
  if (!database_) return std::nullopt;
  Result<std::optional<Digest>> found = database_->find(subject, nbytes);
  if (found) return *found;
  give_up(std::move(found.error()));
  return std::nullopt;
}

void DigestCache::remember(std::span<const Row> rows) {
  if (!database_ || rows.empty()) return;
  if (Status done = database_->insert(rows); !done) give_up(std::move(done.error()));
}

}  // namespace wcache
