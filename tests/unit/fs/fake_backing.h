#pragma once

#include <cerrno>
#include <map>
#include <vector>

#include "fs/passthrough.h"

namespace wcache::test {

/// A kernel's registry of backing files that remembers what it was asked.
class FakeBackingRegistry : public BackingRegistry {
 public:
  Result<int> add(int backing_fd) override {
    if (refuse_with != 0) return fail_errno("registering", refuse_with);
    ids[next] = backing_fd;
    return next++;
  }
  void remove(int id) override {
    removed.push_back(id);
    ids.erase(id);
  }

  int refuse_with = 0;
  int next = 1;
  std::map<int, int> ids;  ///< registered now: id -> descriptor
  std::vector<int> removed;
};

}  // namespace wcache::test
