# Writes commit.h, which names the commit that the sources are of: cmake -D SOURCE=FOLDER -D OUT=FILE -P commit.cmake.
# `git archive` has left it in archive.txt; in a working copy git knows it. The file stays as it is if nothing changed.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/archive.txt commit LIMIT_COUNT 1)
if(commit MATCHES "^[0-9a-f]+$")
  string(SUBSTRING ${commit} 0 12 commit)
else()
  set(commit unknown)
  find_program(git git)
  if(git) # and not of a repository that these sources were unpacked in
    execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-prefix
      OUTPUT_VARIABLE above RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(git AND status EQUAL 0 AND above STREQUAL "")
    execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} describe --always --exclude=* --abbrev=12 --dirty=-changed
      OUTPUT_VARIABLE described RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0)
      set(commit ${described})
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define QN_COMMIT \"${commit}\"\n")
