# How our own code is compiled: wcache_settings (language, include root, sanitizers) and wcache_warnings.
# Both are linked PRIVATE by our targets (cmake/targets.cmake); third-party targets never see them.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(WCACHE_GENERATED_DIR ${CMAKE_BINARY_DIR}/generated)

# Where an installed program finds the libfuse that is installed with it (cmake/install.cmake).
set(WCACHE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR}/wcache)

find_program(WCACHE_CCACHE ccache)
mark_as_advanced(WCACHE_CCACHE)
if(WCACHE_CCACHE)
  foreach(language C CXX)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${WCACHE_CCACHE})
    endif()
  endforeach()
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(wcache_settings INTERFACE)
target_include_directories(wcache_settings INTERFACE ${CMAKE_SOURCE_DIR})
target_include_directories(wcache_settings SYSTEM INTERFACE ${WCACHE_GENERATED_DIR})
target_compile_definitions(wcache_settings INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
target_link_libraries(wcache_settings INTERFACE Threads::Threads)
if(WCACHE_SANITIZE)
  target_compile_options(wcache_settings INTERFACE -fsanitize=${WCACHE_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  target_link_options(wcache_settings INTERFACE -fsanitize=${WCACHE_SANITIZE})
endif()

add_library(wcache_warnings INTERFACE)
target_compile_options(
  wcache_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wcast-qual
            -Wcast-align
            -Wundef
            -Wformat=2
            -Wimplicit-fallthrough
            -Wvla
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
            $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
            $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>
            $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond>
            $<$<CXX_COMPILER_ID:GNU>:-Wlogical-op>
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
if(WCACHE_DEV)
  target_compile_options(wcache_warnings INTERFACE -Werror)
endif()
