# The private libfuse, where one is used, is installed for the programs that need it. Each program, library and man page
# is installed where it is defined.

if(WCACHE_FUSE_LIBRARY_DIR)
  file(GLOB libraries ${WCACHE_FUSE_LIBRARY_DIR}/libfuse3.so.*)
  install(FILES ${libraries} DESTINATION ${CMAKE_INSTALL_LIBDIR}/wcache)
endif()
