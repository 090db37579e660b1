#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/fd.h"
#include "core/key.h"
#include "core/result.h"

namespace wcache::rendezvous {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kMaxFrame = std::size_t{16} << 20;  ///< a key of some 100,000 files
inline constexpr std::size_t kMaxJoin = 4096;  ///< nothing larger is read before the token is right

struct Join {
  std::string token;
  std::uint16_t version = kVersion;
  std::uint32_t node_rank = 0;
  std::uint32_t nnodes = 0;
  std::string role;
  std::string label;
};
struct Part {
  Key key;
};
struct NodeReady {};
struct AllReady {};
struct Alive {};
struct Failed {
  std::string label;
  Error error;
};
using Frame = std::variant<Join, Part, NodeReady, AllReady, Alive, Failed>;

/// A frame with its length word, as it goes on the wire.
std::vector<std::byte> encode(const Frame& frame);
/// The inverse, without the length word. Reason::version or Reason::corrupt for bytes that are no frame.
Result<Frame> decode(std::span<const std::byte> bytes);

/// One TCP connection in non-blocking mode: frames in and out, never waiting. Not thread-safe.
class Link {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Link(Fd fd) : fd_(std::move(fd)), heard_(Clock::now()) {}

  int fd() const { return fd_.get(); }
  bool wants_write() const { return sent_ < out_.size(); }
  Clock::time_point heard() const { return heard_; }  ///< when the last byte came

  void send(const Frame& frame);
  /// Writes what fits. An error means that the peer is gone.
  Status flush();
  /// Reads what is there. An error means that the peer is gone or sends what is no frame; `limit` bounds one
  /// frame.
  Status fill(std::size_t limit);
  /// The next whole frame read, if there is one.
  Result<std::optional<Frame>> next(std::size_t limit);

 private:
  Fd fd_;
  std::vector<std::byte> in_, out_;
  std::size_t sent_ = 0;
  Clock::time_point heard_;
};

}  // namespace wcache::rendezvous
