#include "cli/version.h"

#include "cli/commit.h" // made by cmake/commit.cmake
#include "quern.h"

#include <stdio.h>
#include <string.h>

#ifdef __clang__ // whose text begins with its name
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

// Devices list the levels that this machine has, from the slowest to the one that is used.
static void print_levels(void) {
    static const char prefix[] = "cpu:";
    const char *level = "unknown";
    for (size_t i = 0; qn_device_name(i); i++) {
        const char *name = qn_device_name(i);
        if (strncmp(name, prefix, sizeof prefix - 1) == 0) level = name + sizeof prefix - 1;
    }
    printf("CPU level  %s\n", level);
}

void qn_version_print(void) {
    printf("quern %s\n", qn_version());
    printf("commit     " QN_COMMIT "\n");
    printf("compiler   " COMPILER ", " QN_BUILD "\n");
    print_levels();
    printf("libraries  " QN_LIBRARIES "\n");
}
