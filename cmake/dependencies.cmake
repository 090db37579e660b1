# Every decision about a third-party library is taken here, once, and printed. The rest of the tree links wcache::NAME.
# Minimum versions are Debian 12's; Debian 13's work too. All come from the distribution but a libfuse older than 3.17
# (scripts/setup builds a newer one into the project's own prefix).

find_package(PkgConfig REQUIRED)
set(wcache_summary "")

# wcache_dependency(NAME VERSION target...): an interface target wcache::NAME that links `target...`, and a summary line.
function(wcache_dependency NAME VERSION)
  add_library(wcache_dependency_${NAME} INTERFACE)
  target_link_libraries(wcache_dependency_${NAME} INTERFACE ${ARGN})
  add_library(wcache::${NAME} ALIAS wcache_dependency_${NAME})
  set(wcache_summary "${wcache_summary}\n    ${NAME} ${VERSION}" PARENT_SCOPE)
endfunction()

# wcache_pkg_config(NAME module>=version): the same for a module of pkg-config's.
macro(wcache_pkg_config NAME MODULE)
  string(TOUPPER WCACHE_${NAME} _prefix)
  pkg_check_modules(${_prefix} REQUIRED QUIET IMPORTED_TARGET ${MODULE})
  wcache_dependency(${NAME} ${${_prefix}_VERSION} PkgConfig::${_prefix})
endmacro()

# wcache_header(VARIABLE header package): where a header-only library is; an error names the Debian package.
function(wcache_header VARIABLE HEADER PACKAGE)
  find_path(${VARIABLE} ${HEADER})
  mark_as_advanced(${VARIABLE})
  if(NOT ${VARIABLE})
    message(FATAL_ERROR "${HEADER} not found: install ${PACKAGE} (scripts/setup does)")
  endif()
endfunction()

wcache_pkg_config(uring liburing>=2.3)
wcache_pkg_config(xxhash libxxhash>=0.8.1)
wcache_pkg_config(simdjson simdjson>=3.0)
wcache_pkg_config(toml tomlplusplus>=3.3)
wcache_pkg_config(sqlite sqlite3>=3.40)

find_package(spdlog 1.10 CONFIG REQUIRED)
wcache_dependency(spdlog ${spdlog_VERSION} spdlog::spdlog)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
wcache_dependency(json ${nlohmann_json_VERSION} nlohmann_json::nlohmann_json)
find_package(CLI11 2.1 CONFIG REQUIRED)
wcache_dependency(cli11 ${CLI11_VERSION} CLI11::CLI11)

wcache_header(WCACHE_EXPECTED_INCLUDE tl/expected.hpp libexpected-dev)
wcache_dependency(expected "headers")
target_include_directories(wcache_dependency_expected SYSTEM INTERFACE ${WCACHE_EXPECTED_INCLUDE})

# FlatBuffers: the generated code and the verifier are header-only. The compiler must be of the headers' version.
wcache_header(WCACHE_FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h libflatbuffers-dev)
find_program(WCACHE_FLATC flatc)
mark_as_advanced(WCACHE_FLATC)
if(NOT WCACHE_FLATC)
  message(FATAL_ERROR "flatc not found: install flatbuffers-compiler (scripts/setup does)")
endif()
file(STRINGS ${WCACHE_FLATBUFFERS_INCLUDE}/flatbuffers/base.h _lines REGEX "define FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION)")
string(REGEX REPLACE "[^0-9;]" "" _version "${_lines}")
list(JOIN _version "." _version)
wcache_dependency(flatbuffers ${_version})
target_include_directories(wcache_dependency_flatbuffers SYSTEM INTERFACE ${WCACHE_FLATBUFFERS_INCLUDE})

# libfuse: WCACHE_FUSE_PREFIX, else the project's own prefix, else the system's. Passthrough is a matter of compiling,
# not of macros: FUSE_CAP_PASSTHROUGH is an enum in 3.17 and a macro later.
include(fuse)

# CUDA: headers only, and only in daemon/memory/cuda*; the driver is loaded at run time.
find_path(
  WCACHE_CUDA_INCLUDE cuda.h
  HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH}
  PATHS /usr/local/cuda ${CMAKE_SOURCE_DIR}/build/deps/cuda
  PATH_SUFFIXES include)
mark_as_advanced(WCACHE_CUDA_INCLUDE)
if(NOT WCACHE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h not found: set CUDA_HOME to a CUDA toolkit (scripts/setup gets the header)")
endif()
file(STRINGS ${WCACHE_CUDA_INCLUDE}/cuda.h _version REGEX "define CUDA_VERSION +[0-9]+" LIMIT_COUNT 1)
string(REGEX REPLACE ".* ([0-9]+).*" "\\1" _version "${_version}")
wcache_dependency(cuda_headers ${_version})
target_include_directories(wcache_dependency_cuda_headers SYSTEM INTERFACE ${WCACHE_CUDA_INCLUDE})

if(WCACHE_TESTS)
  find_package(GTest 1.12 CONFIG REQUIRED)
  wcache_dependency(gtest ${GTest_VERSION} GTest::gtest GTest::gmock)
  find_package(benchmark 1.7 CONFIG REQUIRED)
  wcache_dependency(benchmark ${benchmark_VERSION} benchmark::benchmark)
endif()

message(STATUS "wcache ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}"
               ", sanitizers: [${WCACHE_SANITIZE}], ccache: ${WCACHE_CCACHE}; with${wcache_summary}")
