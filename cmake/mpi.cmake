# libquern-mpi.so, which carries messages between machines: built where MPI is found, opened at run
# time. The program and the library do not need it.
set(QN_MPI auto CACHE STRING "build the library for many machines: auto (where MPI is found), on, off")
if(NOT QN_MPI STREQUAL off)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(QN_MPI STREQUAL off OR (QN_MPI STREQUAL auto AND (NOT MPI_C_FOUND OR QN_SANITIZE OR QN_FUZZ)))
  add_custom_target(quern_mpi) # nothing to build
  return()
endif()
if(NOT MPI_C_FOUND)
  message(FATAL_ERROR "QN_MPI is on, and there is no MPI")
endif()

file(GLOB mpi_sources CONFIGURE_DEPENDS src/ranks/mpi/*.c)
add_library(quern_mpi MODULE ${mpi_sources})
set_target_properties(quern_mpi PROPERTIES OUTPUT_NAME quern-mpi INSTALL_RPATH_USE_LINK_PATH ON)
target_include_directories(quern_mpi PRIVATE include src)
target_link_libraries(quern_mpi PRIVATE MPI::MPI_C ${CMAKE_DL_LIBS})
install(TARGETS quern_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/quern)
