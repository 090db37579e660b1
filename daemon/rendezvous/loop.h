#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/rendezvous/frame.h"
#include "daemon/rendezvous/rendezvous.h"

namespace wcache {

/// The thread behind a Rendezvous. Everything but `post` happens on that thread; `post` queues work for it.
class Rendezvous::Loop {
 public:
  using Clock = rendezvous::Link::Clock;

  Loop(RendezvousOptions options, Handler handler, Fd wake, Fd listener);
  ~Loop();

  struct Contribute {
    Key part;
  };
  struct LocalReady {};
  struct LocalFailed {
    Error error;
  };
  using Command = std::variant<Contribute, LocalReady, LocalFailed>;
  void post(Command command);

 private:
  /// One node of the group, as the hub knows it. The hub's own has no link.
  struct Node {
    std::optional<rendezvous::Link> link;
    std::string label;
    std::optional<Key> part;
    bool ready = false;
  };
  /// A connection whose token is not checked yet.
  struct Stranger {
    rendezvous::Link link;
    Clock::time_point until;
  };

  bool is_hub() const { return options_.node_rank == 0; }
  void run(std::stop_token stop);
  void wait_for_events();
  void take_commands();
  void obey(Contribute& command);
  void obey(LocalReady&);
  void obey(LocalFailed& command);

  void hub_turn();
  void accept_strangers();
  void hear_strangers();
  bool admit(Stranger& stranger, const rendezvous::Join& join);
  void hear_node(std::size_t rank);
  void hub_progress();

  void spoke_turn();
  void connect_to_hub();
  void hear_hub();
  /// What a frame from the hub means for this node.
  void obey(rendezvous::Frame& frame);

  void keep_alive();
  void check_deadlines();
  std::string missing_nodes() const;
  void to_all(const rendezvous::Frame& frame);
  void finish(RendezvousEvent event);
  void fail_all(const std::string& label, Error error);
  void farewell();

  const RendezvousOptions options_;
  const Handler handler_;
  const Fd wake_;
  Fd listener_;  // hub only
  Clock::time_point deadline_;
  Clock::time_point next_alive_;
  Clock::time_point next_connect_;

  std::vector<Node> nodes_;  // hub: all of them; spoke: [0] is the hub, [1] this node
  std::deque<Stranger> strangers_;
  Fd connecting_;                // spoke: a connect under way
  std::optional<Error> untold_;  // spoke: failed before it reached the hub
  bool agreed_ = false;
  bool done_ = false;

  std::mutex mutex_;  // guards commands_ alone; a leaf
  std::vector<Command> commands_;
  std::jthread thread_;  // last: stops before the rest goes
};

}  // namespace wcache
