#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "draftroute/decision.h"

namespace CLI {
class App;
}

namespace wcache::draftroute {

/// The key options: those that say which bytes a group holds. The same for preload, fingerprint, route and
/// wcached.
class KeyOptions {
 public:
  /// Adds them to a command; they are filled when it parses. Must outlive it.
  void add_to(CLI::App& app);

  /// What was given, for this MODEL. Reason::invalid, with the option as key, for a value that is none.
  Result<RouteRequest> request(std::string model) const;

  /// The words that give another program the same options.
  static std::vector<std::string> arguments(const RouteRequest& request);

 private:
  std::string tp_size_;
  std::string speculative_;
  std::string methods_;
  std::string shared_;
};

}  // namespace wcache::draftroute
