# What no single target installs: man pages, and the private libfuse, where one is used, for the programs that need it.

foreach(section 1 5 7 8)
  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.${section})
  if(pages)
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
  endif()
endforeach()

if(WCACHE_FUSE_LIBRARY_DIR)
  file(GLOB libraries ${WCACHE_FUSE_LIBRARY_DIR}/libfuse3.so.*)
  install(FILES ${libraries} DESTINATION ${CMAKE_INSTALL_LIBDIR}/wcache)
endif()
