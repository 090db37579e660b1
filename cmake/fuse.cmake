# libfuse 3: finds it, and decides FUSE_USE_VERSION and WCACHE_HAVE_PASSTHROUGH (0 or 1), both defined by wcache::fuse.

set(_prefix "${WCACHE_FUSE_PREFIX}")
if(NOT _prefix AND EXISTS ${CMAKE_SOURCE_DIR}/build/deps/fuse3/lib/pkgconfig/fuse3.pc)
  set(_prefix ${CMAKE_SOURCE_DIR}/build/deps/fuse3)
endif()
if(WCACHE_SYSTEM_FUSE)
  set(_prefix "")
endif()

# The directory of the private libfuse, which install() bundles; empty with the system's.
set(WCACHE_FUSE_LIBRARY_DIR "")
if(_prefix)
  if(NOT EXISTS ${_prefix}/lib/pkgconfig/fuse3.pc)
    message(FATAL_ERROR "WCACHE_FUSE_PREFIX: no libfuse in ${_prefix} (lib/pkgconfig/fuse3.pc is missing)")
  endif()
  set(_saved "$ENV{PKG_CONFIG_PATH}")
  set(ENV{PKG_CONFIG_PATH} ${_prefix}/lib/pkgconfig)
  pkg_check_modules(WCACHE_PRIVATE_FUSE REQUIRED QUIET IMPORTED_TARGET fuse3>=3.12)
  set(ENV{PKG_CONFIG_PATH} "${_saved}")
  set(_module WCACHE_PRIVATE_FUSE)
  set(WCACHE_FUSE_LIBRARY_DIR ${_prefix}/lib)
else()
  pkg_check_modules(WCACHE_SYSTEM_FUSE3 REQUIRED QUIET IMPORTED_TARGET fuse3>=3.12)
  set(_module WCACHE_SYSTEM_FUSE3)
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::${_module})
set(CMAKE_REQUIRED_DEFINITIONS -DFUSE_USE_VERSION=317)
# One cached answer for each libfuse: the prefix may change between two runs of CMake.
string(MAKE_C_IDENTIFIER "WCACHE_PASSTHROUGH_IN_${_prefix}_${${_module}_VERSION}" _check)
check_cxx_source_compiles(
  "#include <fuse_lowlevel.h>
   int main() { return fuse_passthrough_open(nullptr, 0); }" ${_check})
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_DEFINITIONS)

if(${_check})
  set(WCACHE_HAVE_PASSTHROUGH 1)
  set(_use_version 317) # FUSE_MAKE_VERSION(3, 17)
  set(_note "with passthrough")
else()
  set(WCACHE_HAVE_PASSTHROUGH 0)
  set(_use_version 312) # FUSE_MAKE_VERSION(3, 12)
  set(_note "without passthrough: older than 3.17")
endif()

wcache_dependency(fuse "${${_module}_VERSION} ${_note}, ${${_module}_LIBDIR}" PkgConfig::${_module})
target_compile_definitions(wcache_dependency_fuse INTERFACE FUSE_USE_VERSION=${_use_version}
                                                            WCACHE_HAVE_PASSTHROUGH=${WCACHE_HAVE_PASSTHROUGH})
