#include "core/result.h"

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace wcache {
namespace {

struct Row {
  Reason reason;
  std::string_view word;
  int exit_code;
};

constexpr std::array kRows{
    Row{Reason::invalid, "invalid", 2},         Row{Reason::not_running, "not-running", 3},
    Row{Reason::not_found, "not-found", 3},     Row{Reason::not_ready, "not-ready", 5},
    Row{Reason::mismatch, "mismatch", 4},       Row{Reason::stale, "stale", 4},
    Row{Reason::evicted, "evicted", 3},         Row{Reason::busy, "busy", 6},
    Row{Reason::over_budget, "over-budget", 7}, Row{Reason::denied, "denied", 1},
    Row{Reason::unsupported, "unsupported", 1}, Row{Reason::corrupt, "corrupt", 1},
    Row{Reason::io, "io", 1},                   Row{Reason::timeout, "timeout", 5},
    Row{Reason::version, "version", 1},         Row{Reason::internal, "internal", 1},
};

const Row& row_of(Reason reason) {
  for (const Row& row : kRows)
    if (row.reason == reason) return row;
  return kRows.back();
}

}  // namespace

std::string_view to_string(Reason reason) { return row_of(reason).word; }

Reason reason_from_string(std::string_view word) {
  for (const Row& row : kRows)
    if (row.word == word) return row.reason;
  return Reason::internal;
}

int exit_code(Reason reason) { return row_of(reason).exit_code; }

Error errno_error(std::string what, int errnum) {
  Reason reason = Reason::io;
  if (errnum == EACCES || errnum == EPERM) reason = Reason::denied;
  if (errnum == ENOENT || errnum == ENOTDIR) reason = Reason::not_found;
  return Error{reason, std::move(what) + ": " + std::generic_category().message(errnum), {}, {}, errnum};
}

}  // namespace wcache
