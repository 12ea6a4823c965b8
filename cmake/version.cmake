# What `quern --version` says of this build. The commit is looked up at every build.
set(libraries "libedit ${EDIT_VERSION}")
foreach(group dependencies server_dependencies)
  foreach(library ${${group}})
    set(known ${DEPS_${library}_VERSION} ${SERVER_${library}_VERSION})
    list(APPEND libraries "${library} ${known}")
  endforeach()
endforeach()
list(SORT libraries)
list(JOIN libraries ", " libraries)
set_source_files_properties(src/cli/version.c PROPERTIES COMPILE_DEFINITIONS
  "QN_BUILD=\"${CMAKE_BUILD_TYPE}, ${CMAKE_SYSTEM_PROCESSOR}\";QN_LIBRARIES=\"${libraries}\"")
add_custom_target(commit COMMAND ${CMAKE_COMMAND} -D SOURCE=${CMAKE_SOURCE_DIR}
  -D OUT=${CMAKE_CURRENT_BINARY_DIR}/made/cli/commit.h -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS made/cli/commit.h)
add_dependencies(quern commit)
target_include_directories(quern PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/made)
