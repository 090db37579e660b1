# format-check: whether clang-format would change a tracked source file. It needs clang-format and git, and is not part
# of the build: versions of clang-format differ in details.
find_program(WCACHE_CLANG_FORMAT clang-format)
mark_as_advanced(WCACHE_CLANG_FORMAT)
if(WCACHE_CLANG_FORMAT)
  add_custom_target(
    format-check
    COMMAND git ls-files -z -- "*.h" "*.cc" "*.c" | xargs -0 --no-run-if-empty ${WCACHE_CLANG_FORMAT} --dry-run --Werror
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    VERBATIM)
endif()
