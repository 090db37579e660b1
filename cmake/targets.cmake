# The kinds of target the tree is made of. Sources are listed, never globbed; libraries are named as CMake knows them
# (wcache::core, wcache::fuse, ...).

include(GoogleTest)

# Tests without label gpu mean host memory, or a driver of their own, whatever the machine has.
set(WCACHE_NO_LIBCUDA WCACHE_LIBCUDA=set:/no-driver-in-tests/libcuda.so.1)

add_custom_target(check_headers) # compiles every header alone; built on demand

# wcache_library(NAME SOURCES file... [PUBLIC library...] [PRIVATE library...])
# A static library wcache_NAME, known as wcache::NAME. Without a .cc among SOURCES it is an interface library (PUBLIC
# only). The headers beside SOURCES become part of check_headers.
function(wcache_library NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  _wcache_no_rest(${NAME} "${arg_UNPARSED_ARGUMENTS}")
  set(compiled ${arg_SOURCES})
  list(FILTER compiled INCLUDE REGEX "\\.(c|cc)$")
  if(compiled)
    add_library(wcache_${NAME} STATIC ${arg_SOURCES})
    target_link_libraries(wcache_${NAME} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} wcache_settings wcache_warnings)
  else()
    add_library(wcache_${NAME} INTERFACE)
    target_link_libraries(wcache_${NAME} INTERFACE ${arg_PUBLIC})
  endif()
  add_library(wcache::${NAME} ALIAS wcache_${NAME})
  _wcache_check_headers(${NAME} "${arg_SOURCES}" "${arg_PUBLIC};${arg_PRIVATE}")
endfunction()

# wcache_program(NAME main.cc library...)
# A program in bin/, installed.
function(wcache_program NAME MAIN)
  add_executable(${NAME} ${MAIN})
  target_link_libraries(${NAME} PRIVATE ${ARGN} wcache_settings wcache_warnings)
  set_target_properties(${NAME} PROPERTIES INSTALL_RPATH "${WCACHE_INSTALL_RPATH}")
  install(TARGETS ${NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# wcache_shared_library(TARGET OUTPUT name SOURCES file... [PRIVATE library...] [HEADERS file...] [SYMBOLS script])
# An installed shared library lib<name>.so with a C interface: HEADERS are installed in include/, with a
# pkg-config file made of cmake/<name>.pc.in; SYMBOLS is a linker version script. Only what the script or visibility attributes name is exported.
function(wcache_shared_library TARGET)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUTPUT;SYMBOLS" "SOURCES;PRIVATE;HEADERS")
  _wcache_no_rest(${TARGET} "${arg_UNPARSED_ARGUMENTS}")
  add_library(${TARGET} SHARED ${arg_SOURCES})
  target_link_libraries(${TARGET} PRIVATE ${arg_PRIVATE} wcache_settings wcache_warnings)
  target_link_options(${TARGET} PRIVATE -Wl,--exclude-libs,ALL)
  set_target_properties(
    ${TARGET}
    PROPERTIES OUTPUT_NAME ${arg_OUTPUT}
               VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR})
  if(arg_SYMBOLS)
    cmake_path(ABSOLUTE_PATH arg_SYMBOLS BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_options(${TARGET} PRIVATE LINKER:--version-script=${arg_SYMBOLS})
    set_property(TARGET ${TARGET} APPEND PROPERTY LINK_DEPENDS ${arg_SYMBOLS})
  endif()
  install(TARGETS ${TARGET} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${arg_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  if(EXISTS ${CMAKE_SOURCE_DIR}/cmake/${arg_OUTPUT}.pc.in)
    set(pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
    file(RELATIVE_PATH WCACHE_PC_TO_PREFIX ${pkgconfig} ${CMAKE_INSTALL_PREFIX})
    file(RELATIVE_PATH WCACHE_PC_TO_INCLUDE ${pkgconfig} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
    configure_file(${CMAKE_SOURCE_DIR}/cmake/${arg_OUTPUT}.pc.in ${CMAKE_BINARY_DIR}/${arg_OUTPUT}.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/${arg_OUTPUT}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
endfunction()

# wcache_test(NAME LABELS label SOURCES file... [LIBS library...] [TIMEOUT seconds] [NO_MAIN])
# A GoogleTest program; ctest sees each of its cases, under one label (unit, mount, engines, gpu). TIMEOUT is a case's,
# 60 seconds by default. Cases run with WCACHE_BIN_DIR set to where the programs are; one that calls GTEST_SKIP counts as
# skipped. NO_MAIN: SOURCES have a main of their own.
function(wcache_test NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN" "TIMEOUT" "LABELS;SOURCES;LIBS")
  _wcache_no_rest(${NAME} "${arg_UNPARSED_ARGUMENTS}")
  _wcache_check_labels(${NAME} "${arg_LABELS}")
  list(LENGTH arg_LABELS count)
  if(NOT count EQUAL 1) # CMake 3.25 loses the list when cases are discovered at test time
    message(FATAL_ERROR "${NAME}: a GoogleTest program has one label")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  _wcache_timeout(arg_TIMEOUT ${arg_TIMEOUT})
  if(NOT arg_NO_MAIN)
    list(APPEND arg_LIBS GTest::gmock_main)
  endif()
  _wcache_serial(serial "${arg_LABELS}")
  add_executable(${NAME} ${arg_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${arg_LIBS} wcache::gtest wcache_settings wcache_warnings)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  _wcache_no_libcuda(no_libcuda "${arg_LABELS}")
  gtest_discover_tests(
    ${NAME}
    TEST_PREFIX ${NAME}.
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT}
               LABELS ${arg_LABELS}
               RUN_SERIAL ${serial}
               ${no_libcuda}
               ENVIRONMENT WCACHE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endfunction()

# wcache_script_test(NAME LABELS label... COMMAND command... [TIMEOUT seconds])
# A test that is a command. It runs in the source root with WCACHE_BIN_DIR set to where the programs are; exit status 77
# counts as skipped. TIMEOUT is 600 by default.
function(wcache_script_test NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LABELS;COMMAND")
  _wcache_no_rest(${NAME} "${arg_UNPARSED_ARGUMENTS}")
  _wcache_check_labels(${NAME} "${arg_LABELS}")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  _wcache_timeout(arg_TIMEOUT ${arg_TIMEOUT})
  _wcache_serial(serial "${arg_LABELS}")
  _wcache_no_libcuda(no_libcuda "${arg_LABELS}")
  add_test(NAME ${NAME} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(
    ${NAME}
    PROPERTIES LABELS "${arg_LABELS}"
               TIMEOUT ${arg_TIMEOUT}
               RUN_SERIAL ${serial}
               SKIP_RETURN_CODE 77
               ${no_libcuda}
               ENVIRONMENT "WCACHE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()

# wcache_flatbuffers(TARGET schema.fbs...)
# Generates <name>_generated.h from each schema while building; for core/manifest.fbs it is included as
# "core/manifest_generated.h". TARGET, made by wcache_library, gets wcache::flatbuffers.
function(wcache_flatbuffers TARGET)
  foreach(schema IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH schema BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET schema STEM name)
    cmake_path(GET schema PARENT_PATH directory)
    cmake_path(RELATIVE_PATH directory BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    set(output_directory ${WCACHE_GENERATED_DIR}/${directory})
    set(output ${output_directory}/${name}_generated.h)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${WCACHE_FLATC} --cpp --cpp-std c++17 --scoped-enums --keep-prefix -I ${CMAKE_SOURCE_DIR} -o
              ${output_directory} ${schema}
      DEPENDS ${schema} ${WCACHE_FLATC}
      COMMENT "Generating ${directory}/${name}_generated.h"
      VERBATIM)
    target_sources(${TARGET} PRIVATE ${output})
    list(APPEND outputs ${output})
  endforeach()
  target_link_libraries(${TARGET} PUBLIC wcache::flatbuffers)
  if(TARGET ${TARGET}_headers)
    target_sources(${TARGET}_headers PRIVATE ${outputs})
  endif()
endfunction()

# Compiles each header beside `sources` alone, with the libraries of the library they belong to.
function(_wcache_check_headers NAME SOURCES LIBRARIES)
  foreach(source IN LISTS SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET source PARENT_PATH directory)
    list(APPEND directories ${directory})
  endforeach()
  list(REMOVE_DUPLICATES directories)
  foreach(directory IN LISTS directories)
    file(GLOB headers CONFIGURE_DEPENDS ${directory}/*.h)
    foreach(header IN LISTS headers)
      cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
      set(check ${CMAKE_BINARY_DIR}/header_checks/${NAME}/${header}.cc)
      file(CONFIGURE OUTPUT ${check} CONTENT "#include \"${header}\"\n")
      list(APPEND checks ${check})
    endforeach()
  endforeach()
  if(checks)
    add_library(wcache_${NAME}_headers OBJECT EXCLUDE_FROM_ALL ${checks})
    target_link_libraries(wcache_${NAME}_headers PRIVATE ${LIBRARIES} wcache_settings wcache_warnings)
    add_dependencies(check_headers wcache_${NAME}_headers)
  endif()
endfunction()

function(_wcache_no_rest NAME REST)
  if(REST)
    message(FATAL_ERROR "${NAME}: unexpected arguments: ${REST}")
  endif()
endfunction()

# What a test is given, in seconds: with a sanitizer it takes several times as long.
function(_wcache_timeout VARIABLE SECONDS)
  if(WCACHE_SANITIZE)
    math(EXPR SECONDS "5 * ${SECONDS}")
  endif()
  set(${VARIABLE} ${SECONDS} PARENT_SCOPE)
endfunction()

# Tests with real mounts, engines or a device share them and the machine's memory: one at a time, and nothing beside them.
function(_wcache_serial VARIABLE LABELS)
  if(LABELS STREQUAL unit)
    set(${VARIABLE} OFF PARENT_SCOPE)
  else()
    set(${VARIABLE} ON PARENT_SCOPE)
  endif()
endfunction()

# The property that hides the machine's own CUDA driver from a test; nothing for label gpu.
function(_wcache_no_libcuda VARIABLE LABELS)
  if(LABELS STREQUAL gpu)
    set(${VARIABLE} "" PARENT_SCOPE)
  else()
    set(${VARIABLE} ENVIRONMENT_MODIFICATION ${WCACHE_NO_LIBCUDA} PARENT_SCOPE)
  endif()
endfunction()

function(_wcache_check_labels NAME LABELS)
  if(NOT LABELS)
    message(FATAL_ERROR "${NAME}: a test needs LABELS (unit, mount, engines, gpu)")
  endif()
  foreach(label IN LISTS LABELS)
    if(NOT label MATCHES "^(unit|mount|engines|gpu)$")
      message(FATAL_ERROR "${NAME}: unknown label ${label} (unit, mount, engines, gpu)")
    endif()
  endforeach()
endfunction()
