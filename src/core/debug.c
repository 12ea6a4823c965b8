#include "core/debug.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static qn_status read_int(int *out, const char *name, const char *text, qn_err *err) {
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < 0 || value > 1000000)
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a number from 0 to 1000000", name, text);
    *out = (int)value;
    return QN_OK;
}

static qn_status read_text(const char **out, const char *name, const char *text, qn_err *err) {
    (void)name, (void)err;
    *out = text;
    return QN_OK;
}

#define READER(field) _Generic((field), int * : read_int, const char ** : read_text)

qn_status qn_switches_read(qn_switches *out, qn_err *err) {
    qn_switches got = {
#define SWITCH(env, type, field, value, meaning) .field = value,
#include "core/switch.def"
#undef SWITCH
    };
    const char *text;
#define SWITCH(env, type, field, value, meaning)                                                   \
    text = getenv(env);                                                                            \
    if (text && *text) QN_TRY(READER (&got.field)(&got.field, env, text, err));
#include "core/switch.def"
#undef SWITCH
    *out = got;
    return QN_OK;
}

static const char *const names[] = {
#define SWITCH(env, type, field, value, meaning) env,
#include "core/switch.def"
#undef SWITCH
};

const char *const *qn_switch_names(size_t *n) {
    *n = sizeof names / sizeof *names;
    return names;
}

// Variables have the form NAME=value.
static bool is_switch(const char *variable, size_t size) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], variable, size) == 0) return true;
    }
    return false;
}

// The next variable whose name begins so; its name has *size bytes.
static const char *next_variable(size_t *at, size_t *size, const char *prefix) {
    while (environ && environ[*at]) {
        const char *variable = environ[(*at)++];
        if (strncmp(variable, prefix, strlen(prefix)) != 0) continue;
        *size = strcspn(variable, "=");
        return variable;
    }
    return NULL;
}

const char *qn_switch_stray(size_t *at, size_t *size) {
    const char *variable;
    do variable = next_variable(at, size, "QN_");
    while (variable && is_switch(variable, *size));
    return variable;
}

const char qn_option_prefix[] = "QUERN_OPT_";

const char *qn_option_variable(size_t *at, size_t *size) {
    const char *variable;
    do variable = next_variable(at, size, qn_option_prefix);
    while (variable && (!variable[*size] || !variable[*size + 1]));
    return variable;
}

static const char *read_variable(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

qn_surroundings qn_surroundings_read(void) {
    const char *visual = read_variable("VISUAL");
    return (qn_surroundings){.term = read_variable("TERM"),
                             .no_color = read_variable("NO_COLOR"),
                             .home = read_variable("HOME"),
                             .config_home = read_variable("XDG_CONFIG_HOME"),
                             .config = read_variable("QUERN_CONFIG"),
                             .state_home = read_variable("XDG_STATE_HOME"),
                             .editor = visual ? visual : read_variable("EDITOR"),
                             .temporary = read_variable("TMPDIR")};
}

qn_model_places qn_model_places_read(void) {
    return (qn_model_places){.home = read_variable("HOME"),
                             .data_home = read_variable("XDG_DATA_HOME"),
                             .cache_home = read_variable("XDG_CACHE_HOME"),
                             .models = read_variable("QUERN_MODELS"),
                             .hf_endpoint = read_variable("HF_ENDPOINT"),
                             .hf_token = read_variable("HF_TOKEN"),
                             .hf_home = read_variable("HF_HOME"),
                             .hf_hub_cache = read_variable("HF_HUB_CACHE"),
                             .llama_cache = read_variable("LLAMA_CACHE"),
                             .ollama_models = read_variable("OLLAMA_MODELS")};
}

int qn_launch_rank(void) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const char *value = read_variable(ranks[i]);
        const long rank = value ? strtol(value, NULL, 10) : 0;
        if (value) return rank > 0 && rank < INT_MAX ? (int)rank : 0;
    }
    return 0;
}

// The first that says how many there are decides: mpirun -n 1 starts no several. Open MPI; MPICH,
// or Slurm with PMI-2; Slurm, where the number is that of a step (srun): a batch script has that of
// the job, too, but runs alone. Other launchers with PMIx give a process its rank alone.
bool qn_launch_has_others(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *value = read_variable(sizes[i]);
        if (value) return strtol(value, NULL, 10) > 1;
    }
    return read_variable("PMIX_RANK") != NULL;
}
