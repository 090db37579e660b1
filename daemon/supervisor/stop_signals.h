#pragma once

#include <utility>

#include "core/fd.h"
#include "core/result.h"

namespace wcache {

/// The signals that end a launcher. `block` is the first act of main, before any thread: from then on they
/// wait for the descriptor that `open` gives. SIGPIPE is ignored.
class StopSignals {
 public:
  static void block();
  /// For a program that wants none of it after all.
  static void unblock();
  static Result<StopSignals> open();

  int fd() const { return fd_.get(); }
  /// The number of a signal that has come; 0 for none. Never blocks.
  int take() const;
  /// Whether one is waiting; it stays there.
  bool pending() const;

 private:
  explicit StopSignals(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace wcache
