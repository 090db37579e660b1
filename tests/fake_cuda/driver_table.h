#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "tests/fake_cuda/functions.h"

namespace wcache::testing {

/// The driver's functions, each by its exported name, from a library that dlopen gave.
struct DriverTable {
  explicit DriverTable(void* library) {
#define X(name, base, since) name = reinterpret_cast<decltype(name)>(find(library, #name));
    WCACHE_FAKE_CUDA_FUNCTIONS(X)
#undef X
  }

#define X(name, base, since) decltype(&::name) name;
  WCACHE_FAKE_CUDA_FUNCTIONS(X)
#undef X

 private:
  static void* find(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found) throw std::runtime_error(std::string("no ") + name);
    return found;
  }
};

}  // namespace wcache::testing
