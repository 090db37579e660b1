#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace wcache {

/// Every reason a caller may meet. The set is closed: it is part of the contract (exit codes, JSON, C ABI),
/// so a new value is a new version of the contract.
enum class Reason {
  invalid,       ///< usage, configuration or model argument
  not_running,   ///< no daemon, launcher or mount answers
  not_found,     ///< no such entry, tensor or name
  not_ready,     ///< still filling; try again
  mismatch,      ///< another fingerprint, device or layout than asked for; the message names the fields
  stale,         ///< the source changed since it was cached
  evicted,       ///< dropped on request
  busy,          ///< held by an engine
  over_budget,   ///< a limit is too small; the message names the limit
  denied,        ///< permission
  unsupported,   ///< this checkpoint, machine or option cannot be served
  corrupt,       ///< bytes are not what they claim to be; the message names file and check
  io,            ///< the operating system refused a read, write or map
  timeout,       ///< a deadline passed
  version,       ///< the peer speaks another protocol
  internal,      ///< a bug
};

/// An error as the user meets it: what was wrong and where (`message`), what to do about it (`hint`), and the
/// option or JSON key at fault (`key`, empty when there is none). `errnum` is the errno behind it, or 0.
struct Error {
  Reason reason = Reason::internal;
  std::string message;
  std::string hint = {};
  std::string key = {};
  int errnum = 0;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// The field's spelling on every wire and in JSON: "not-running", "over-budget", ...
std::string_view to_string(Reason reason);

/// The inverse of to_string; Reason::internal for a word that is none of them.
Reason reason_from_string(std::string_view word);

/// The exit code of a command that ends with this reason (the table in docs/ and wcache(1)).
int exit_code(Reason reason);

/// An Error whose message is "<what>: <strerror(errnum)>", classified: EACCES and EPERM are denied, ENOENT and
/// ENOTDIR not_found, everything else io.
Error errno_error(std::string what, int errnum);

inline tl::unexpected<Error> fail(Reason reason, std::string message, std::string hint = {}, std::string key = {}) {
  return tl::unexpected<Error>(Error{reason, std::move(message), std::move(hint), std::move(key), 0});
}

inline tl::unexpected<Error> fail_errno(std::string what, int errnum) {
  return tl::unexpected<Error>(errno_error(std::move(what), errnum));
}

inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace wcache
