#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wcache {

/// What a person who waits for a group wants to see of it.
struct GroupProgress {
  std::string role;
  std::string name;
  std::string state;         ///< "starting", "filling", "mounting", ...
  std::uint64_t filled = 0;  ///< bytes
  std::uint64_t nbytes = 0;  ///< bytes; 0 while it is not known
  double rate = 0;           ///< bytes a second
  bool operator==(const GroupProgress&) const = default;
};

/// "target Qwen3-8B: filling, 1.2 GiB of 15.3 GiB (8 %), 2.1 GiB/s, 6 s left"
std::string describe(const GroupProgress& progress);

/// The launcher's voice: READY lines on standard output, everything else on standard error. On a terminal
/// each group has one line that is rewritten in place; otherwise a line is written when a group's state
/// changes, and every five seconds while it fills. One thread. Write errors are ignored: a launcher whose
/// terminal is gone goes on.
class Console {
 public:
  using Clock = std::chrono::steady_clock;

  /// The descriptors are borrowed. `columns` is the width of the terminal; 0: `error_fd` is none.
  Console(int output_fd, int error_fd, unsigned columns)
      : output_fd_(output_fd), error_fd_(error_fd), columns_(columns) {}
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console() { clear(); }

  /// The width of the terminal that `fd` is, or 0.
  static unsigned columns_of(int fd);

  /// One whole line on standard output.
  void line(std::string_view text);

  /// "wcache: <text>" on standard error.
  void note(std::string_view text);

  /// One whole line as it is on standard error ("FAILED ...").
  void error_line(std::string_view text);

  /// The groups that are not settled yet, in a fixed order. Called at every turn of the loop; draws when it
  /// is due.
  void show(const std::vector<GroupProgress>& groups, Clock::time_point now);

 private:
  void clear();
  void draw(const std::vector<GroupProgress>& groups);
  void print_plain(const std::vector<GroupProgress>& groups, Clock::time_point now);

  int output_fd_;
  int error_fd_;
  unsigned columns_;
  std::size_t drawn_ = 0;  // lines on the terminal that are ours to rewrite
  std::vector<GroupProgress> shown_;
  Clock::time_point shown_at_{};
};

}  // namespace wcache
