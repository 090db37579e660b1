#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace wcache::fake_cuda {

struct State;

/// One copy as the caller asked for it. Addresses are looked up when it is done, not when it is asked for.
struct Copy {
  enum class Kind { to_device, from_device, on_device };
  Kind kind = Kind::to_device;
  CUdeviceptr destination = 0;  ///< or a host address
  CUdeviceptr source = 0;       ///< or a host address
  std::uint64_t size = 0;
  bool pageable = false;  ///< the caller waits for it, so a bad host address is its error alone
};

struct Event {
  std::uint64_t recorded = 0;  ///< how often
  std::uint64_t done = 0;      ///< the last record that was reached
};

/// What a stream does next: a copy, or the record of an event.
struct Operation {
  Copy copy;
  std::shared_ptr<Event> event;
  std::uint64_t record = 0;
  std::shared_ptr<CUresult> result;  ///< where the one who waits reads how it ended
};

/// Does its operations one after the other in a thread of its own, which starts with the first.
struct Stream {
  CUdevice context = 0;
  std::deque<Operation> queue;  ///< the front is being done
  std::uint64_t asked = 0;
  std::uint64_t done = 0;
  bool has_thread = false;
  bool closed = false;  ///< the thread ends when the queue is empty
};

struct Streams {
  std::map<CUstream, std::shared_ptr<Stream>> streams;
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::map<CUevent, CUdevice> event_contexts;
  std::map<CUdevice, std::shared_ptr<Stream>> null_streams;  ///< by context
  std::vector<std::shared_ptr<Stream>> ending;               ///< destroyed, with something left to do
};

/// Null for no such stream. 0, 1 and 2 are the default stream of `context`.
std::shared_ptr<Stream> find_stream(State& state, CUstream stream, CUdevice context);

/// Appends; 2 when the stream has no thread and can have none.
CUresult ask(State& state, const std::shared_ptr<Stream>& stream, Operation operation);

/// Until all that was asked of the stream before the call is done. The lock is let go of meanwhile.
void wait_for(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Stream>& stream);
/// The same for every stream, destroyed ones too.
void wait_for_streams(State& state, std::unique_lock<std::mutex>& lock);
/// Until no stream has anything to do, whatever is asked for meanwhile.
void wait_until_idle(State& state, std::unique_lock<std::mutex>& lock);
void destroy_streams_of(State& state, CUdevice context);

CUresult create_stream(State& state, CUdevice context, CUstream* stream, unsigned flags);
CUresult query_stream(State& state, CUdevice context, CUstream stream);
CUresult synchronize_stream(State& state, std::unique_lock<std::mutex>& lock, CUdevice context,
                            CUstream stream);
CUresult destroy_stream(State& state, CUstream stream);

CUresult create_event(State& state, CUdevice context, CUevent* event, unsigned flags);
CUresult record_event(State& state, CUdevice context, CUevent event, CUstream stream);
CUresult query_event(State& state, CUevent event);
CUresult synchronize_event(State& state, std::unique_lock<std::mutex>& lock, CUevent event);
CUresult destroy_event(State& state, CUevent event);

}  // namespace wcache::fake_cuda
