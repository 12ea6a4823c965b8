// Any text as a profile of either kind: refused with a line, or read.
#include "fuzz_file.h"

#include "runtime/profile.h"

#include "core/mem.h"

static void load(const char *folder, const char *name) {
    char path[128];
    qn_err err = {0};
    qn_profile profile = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (access(path, F_OK) != 0) return;
    if (qn_profile_load(&profile, path, NULL, NULL, &err) != QN_OK) {
        if (profile.path || !err.message[0]) abort();
        return;
    }
    if (profile.chunk < 0 || profile.compile_seq_cap < 0) abort();
    qn_profile_deinit(&profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"llama.quern.toml", "llama.rlx.toml", NULL};
    const char *folder = fuzz_folder(data, size, names);
    for (size_t i = 0; names[i]; i++) load(folder, names[i]);
    return 0;
}
