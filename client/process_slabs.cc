#include "client/process_slabs.h"

namespace wcache {

// The one global of the library. A slab may be mapped once in a process (its driver counts openings of a
// handle, and address space of mappings, by process), whichever entries and threads ask for it, and a C ABI
// has nobody else to hold what they share. It is never destroyed: at exit the driver may be gone before it,
// and the kernel unmaps everything.
ImportedSlabs& process_slabs() {
  static ImportedSlabs& slabs = *new ImportedSlabs(machine_driver());
  return slabs;
}

}  // namespace wcache
