#pragma once

#include "daemon/memory/cuda/import.h"

namespace wcache {

/// The table of slabs of this process. It loads the CUDA driver when the first slab is imported.
ImportedSlabs& process_slabs();

}  // namespace wcache
