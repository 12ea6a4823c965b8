// Plug-in libraries: parts of the program that need a library which most machines do not have.
#ifndef QN_CORE_PLUGIN_H
#define QN_CORE_PLUGIN_H

#include "core/err.h"

typedef struct qn_plugin {
    const char *whom;    // that the errors are about: "device cuda"
    const char *library; // file name: "libquern-cuda.so"
    const char *path;    // another file, in place of the one that is looked for; NULL: none
    const char *symbol;  // the function that is wanted of it
    const char *missing; // what errors say of a library that is not there: "it is built where ..."
    const char *broken;  // and of one that is, and cannot be opened
} qn_plugin;

// Opens the library beside the program or the library that this function is in, in the folder
// `quern` of the libraries that they are installed with, or where the system looks; it stays open.
// *symbol lives as long as the process.
QN_MUST_CHECK qn_status qn_plugin_open(void **symbol, const qn_plugin *plugin, qn_err *err);

#endif
