# What is installed: the program, both libraries, the header, what pkg-config and CMake read to find
# them, the Python package, the model that `quern run` opens by itself, and a unit for systemd. The
# plug-ins are in cuda.cmake and mpi.cmake, manuals and completion in pages.cmake.
include(CMakePackageConfigHelpers)

install(TARGETS quern)
set_target_properties(quern_shared PROPERTIES EXPORT_NAME quern)
install(TARGETS quern_static quern_shared EXPORT quern)
# `make install` strips. CMake leaves static libraries alone, which need their symbols: not those for
# debugging.
install(CODE "if(CMAKE_INSTALL_DO_STRIP)
  execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:quern_static>\")
endif()")
install(FILES include/quern.h TYPE INCLUDE)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES models/quern-mini-Q8_0.gguf tools/quern.service DESTINATION ${CMAKE_INSTALL_DATADIR}/quern)

# pkg-config
list(JOIN dependencies " " pc_requires)
string(REGEX REPLACE "[^/]+" ".." pc_up ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(cmake/quern.pc.in quern.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# CMake: find_package(quern), then quern::quern or quern::quern_static.
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
configure_package_config_file(cmake/quern-config.cmake.in quern-config.cmake INSTALL_DESTINATION ${cmake_folder}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(quern-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quern-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/quern-config-version.cmake
  DESTINATION ${cmake_folder})
install(EXPORT quern NAMESPACE quern:: FILE quern-targets.cmake DESTINATION ${cmake_folder})

# The Python package: pure Python, with the header that it reads structs and functions from.
set(QN_PYTHON_DIR lib/python3/dist-packages CACHE STRING "where the Python package is installed")
install(DIRECTORY python/quern DESTINATION ${QN_PYTHON_DIR}
  FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
install(FILES include/quern.h DESTINATION ${QN_PYTHON_DIR}/quern)
