# Manual pages, and scripts that complete command lines, from the program's tables and the comments of quern.h.
set(QN_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "where zsh finds functions of packages")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/command.h)
file(READ ${CMAKE_SOURCE_DIR}/src/cli/command.h command_text)
string(REGEX MATCHALL "qn_cmd_[a-z]+" command_names "${command_text}")
list(TRANSFORM command_names REPLACE "qn_cmd_" "")
list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
set(pages ${CMAKE_BINARY_DIR}/pages)
add_custom_command(OUTPUT ${pages}/quern.bash
  COMMAND ${CMAKE_SOURCE_DIR}/tools/pages.sh ${pages} ${CMAKE_SOURCE_DIR}/include/quern.h
    "${emulator}" $<TARGET_FILE:quern> ${command_names}
  DEPENDS quern tools/pages.sh tools/man3.awk include/quern.h
  COMMENT "Writing manual pages" VERBATIM)
add_custom_target(pages ALL DEPENDS ${pages}/quern.bash)
install(DIRECTORY ${pages}/man1 ${pages}/man3 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${pages}/quern.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME quern)
install(FILES ${pages}/quern.zsh DESTINATION ${QN_ZSH_DIR} RENAME _quern)
install(FILES ${pages}/quern.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
