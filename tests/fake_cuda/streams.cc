#include "tests/fake_cuda/streams.h"

#include <signal.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/fake_cuda/copies.h"
#include "tests/fake_cuda/state.h"

namespace wcache::fake_cuda {

namespace {

void finish(Stream& stream) {
  stream.queue.pop_front();
  ++stream.done;
  driver().changed.notify_all();
}

void run(State& state, const std::shared_ptr<Stream>& stream) {
  Lock lock(driver().mutex);
  for (;;) {
    driver().changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) break;
    const Operation& operation = stream->queue.front();
    if (operation.event) {
      operation.event->done = std::max(operation.event->done, operation.record);
    } else {
      const CUresult result = do_copy(state, lock, operation.copy, stream->context);
      if (operation.result) *operation.result = result;
    }
    finish(*stream);
  }
  std::erase(state.streams.ending, stream);
  driver().changed.notify_all();
}

/// The process's signals are not for this thread to take.
bool start_thread(State& state, const std::shared_ptr<Stream>& stream) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([state = state.shared_from_this(), stream] { run(*state, stream); }).detach();
    stream->has_thread = true;
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return stream->has_thread;
}

void close_stream(State& state, const std::shared_ptr<Stream>& stream) {
  stream->closed = true;
  if (!stream->queue.empty()) state.streams.ending.push_back(stream);
  driver().changed.notify_all();
}

std::shared_ptr<Event> find_event(State& state, CUevent event) {
  const auto found = state.streams.events.find(event);
  return found == state.streams.events.end() ? nullptr : found->second;
}

}  // namespace

std::shared_ptr<Stream> find_stream(State& state, CUstream stream, CUdevice context) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) {
    std::shared_ptr<Stream>& of_context = state.streams.null_streams[context];
    if (!of_context) {
      of_context = std::make_shared<Stream>();
      of_context->context = context;
    }
    return of_context;
  }
  const auto found = state.streams.streams.find(stream);
  return found == state.streams.streams.end() ? nullptr : found->second;
}

CUresult ask(State& state, const std::shared_ptr<Stream>& stream, Operation operation) {
  if (!stream->has_thread && !start_thread(state, stream)) return CUDA_ERROR_OUT_OF_MEMORY;
  stream->queue.push_back(std::move(operation));
  ++stream->asked;
  driver().changed.notify_all();
  return CUDA_SUCCESS;
}

void wait_for(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Stream>& stream) {
  driver().changed.wait(lock, [&, asked = stream->asked] { return stream->done >= asked; });
}

void wait_for_streams(State& state, std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Stream>> all = state.streams.ending;
  for (const auto& [handle, stream] : state.streams.streams) all.push_back(stream);
  for (const auto& [context, stream] : state.streams.null_streams) all.push_back(stream);
  for (const std::shared_ptr<Stream>& stream : all) wait_for(lock, stream);
}

void wait_until_idle(State& state, std::unique_lock<std::mutex>& lock) {
  const auto is_idle = [](const auto& entry) { return entry.second->queue.empty(); };
  driver().changed.wait(lock, [&] {
    const Streams& streams = state.streams;
    return streams.ending.empty() && std::ranges::all_of(streams.streams, is_idle) &&
           std::ranges::all_of(streams.null_streams, is_idle);
  });
}

void destroy_streams_of(State& state, CUdevice context) {
  Streams& streams = state.streams;
  std::erase_if(streams.streams, [&](const auto& entry) {
    if (entry.second->context != context) return false;
    close_stream(state, entry.second);
    state.counters.add(Counter::streams, -1);
    return true;
  });
  if (const auto found = streams.null_streams.find(context); found != streams.null_streams.end()) {
    close_stream(state, found->second);
    streams.null_streams.erase(found);
  }
  std::erase_if(streams.event_contexts, [&](const auto& entry) {
    if (entry.second != context) return false;
    streams.events.erase(entry.first);
    state.counters.add(Counter::events, -1);
    return true;
  });
}

CUresult create_stream(State& state, CUdevice context, CUstream* stream, unsigned flags) {
  if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Stream>();
  made->context = context;
  *stream = reinterpret_cast<CUstream>(state.next_handle());
  state.streams.streams[*stream] = std::move(made);
  state.counters.add(Counter::streams, 1);
  return CUDA_SUCCESS;
}

CUresult query_stream(State& state, CUdevice context, CUstream stream) {
  const std::shared_ptr<Stream> found = find_stream(state, stream, context);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  return found->queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronize_stream(State& state, std::unique_lock<std::mutex>& lock, CUdevice context,
                            CUstream stream) {
  const std::shared_ptr<Stream> found = find_stream(state, stream, context);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  wait_for(lock, found);
  return state.sticky;
}

CUresult destroy_stream(State& state, CUstream stream) {
  const auto found = state.streams.streams.find(stream);
  if (found == state.streams.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  close_stream(state, found->second);
  state.streams.streams.erase(found);
  state.counters.add(Counter::streams, -1);
  return CUDA_SUCCESS;
}

CUresult create_event(State& state, CUdevice context, CUevent* event, unsigned flags) {
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!event || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(state.next_handle());
  state.streams.events[*event] = std::make_shared<Event>();
  state.streams.event_contexts[*event] = context;
  state.counters.add(Counter::events, 1);
  return CUDA_SUCCESS;
}

CUresult record_event(State& state, CUdevice context, CUevent event, CUstream stream) {
  const std::shared_ptr<Event> found = find_event(state, event);
  const std::shared_ptr<Stream> on = find_stream(state, stream, context);
  if (!found || !on || state.streams.event_contexts[event] != on->context) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = ask(state, on, Operation{{}, found, found->recorded + 1, nullptr});
  if (result == CUDA_SUCCESS) ++found->recorded;
  return result;
}

CUresult query_event(State& state, CUevent event) {
  const std::shared_ptr<Event> found = find_event(state, event);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (state.sticky != CUDA_SUCCESS) return state.sticky;
  return found->done >= found->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronize_event(State& state, std::unique_lock<std::mutex>& lock, CUevent event) {
  const std::shared_ptr<Event> found = find_event(state, event);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  driver().changed.wait(lock, [&, recorded = found->recorded] { return found->done >= recorded; });
  return state.sticky;
}

CUresult destroy_event(State& state, CUevent event) {
  if (state.streams.events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  state.streams.event_contexts.erase(event);
  state.counters.add(Counter::events, -1);
  return CUDA_SUCCESS;
}

}  // namespace wcache::fake_cuda
