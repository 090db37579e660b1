# What no single target installs: the private libfuse, where one is used, beside the programs that need it.
if(WCACHE_FUSE_LIBRARY_DIR)
  install(
    DIRECTORY ${WCACHE_FUSE_LIBRARY_DIR}/
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/wcache
    FILES_MATCHING
    PATTERN "libfuse3.so.*"
    PATTERN "pkgconfig" EXCLUDE)
endif()
