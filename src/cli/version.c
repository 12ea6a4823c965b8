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

// Devices list the levels that this machine has, from the slowest to the one that is used. CPUs are
// the first of them; others are not asked, as that would start the driver of a GPU.
static void print_levels(void) {
    static const char prefix[] = "cpu";
    const size_t n = sizeof prefix - 1;
    const char *level = "unknown", *name;
    for (size_t i = 0; (name = qn_device_name(i)) && strncmp(name, prefix, n) == 0; i++) {
        if (name[n] == ':') level = name + n + 1;
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
