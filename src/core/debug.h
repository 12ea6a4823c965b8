// Debug switches, all in one table (switch.def), and what else the environment says. It is read
// here and nowhere else; the switches once per engine.
#ifndef QN_CORE_DEBUG_H
#define QN_CORE_DEBUG_H

#include "core/err.h"

typedef struct qn_switches {
#define SWITCH(env, type, field, value, meaning) type field;
#include "core/switch.def"
#undef SWITCH
} qn_switches;

// Reads the environment. An empty value counts as unset. A value that is not a number where one is
// wanted is an error that names it.
QN_MUST_CHECK qn_status qn_switches_read(qn_switches *out, qn_err *err);

const char *const *qn_switch_names(size_t *n);
// The next variable from *at on (0: the first) whose name begins like that of a switch but is none;
// NULL: no more. The name has *size bytes and no NUL after it, and lives as long as the environment
// stays as it is.
const char *qn_switch_stray(size_t *at, size_t *size);

// What the environment says about the user and the terminal. NULL: not there, or empty. The texts
// live as long as the environment stays as it is.
typedef struct qn_surroundings {
    const char *term;        // TERM: the kind of terminal
    const char *no_color;    // NO_COLOR: colours are not wanted
    const char *home;        // HOME: the user's folder
    const char *config_home; // XDG_CONFIG_HOME: where programs keep settings, else ~/.config
    const char *config;      // QUERN_CONFIG: the file of defaults of options, or "none"
    const char *state_home;  // XDG_STATE_HOME: for what programs keep from run to run
    const char *editor;      // VISUAL, else EDITOR: a command
    const char *temporary;   // TMPDIR: for temporary files
} qn_surroundings;

qn_surroundings qn_surroundings_read(void);

// The next variable from *at on (0: the first) that sets the default of an option, as
// QUERN_OPT_TEMP=0.7; NULL: no more. Its name has *size bytes, '=' and the value follow, which is
// not empty.
const char *qn_option_variable(size_t *at, size_t *size);
// What the names of these begin with.
extern const char qn_option_prefix[];

// Where models are, of this program and of others. NULL: not there, or empty. The texts live as
// long as the environment stays as it is.
typedef struct qn_model_places {
    const char *home;          // HOME
    const char *data_home;     // XDG_DATA_HOME: data of the user's programs
    const char *cache_home;    // XDG_CACHE_HOME: the same for what can be made again
    const char *models;        // QUERN_MODELS: our own models
    const char *hf_endpoint;   // HF_ENDPOINT: the hub's address
    const char *hf_token;      // HF_TOKEN: who asks the hub
    const char *hf_home;       // HF_HOME: token and cache of the hub's own programs
    const char *hf_hub_cache;  // HF_HUB_CACHE: that cache alone
    const char *llama_cache;   // LLAMA_CACHE: models of llama.cpp
    const char *ollama_models; // OLLAMA_MODELS: models of Ollama
} qn_model_places;

qn_model_places qn_model_places_read(void);

// The number of this process among those that a launcher started; 0: nothing says so, or the first.
int qn_launch_rank(void);
// Whether a launcher (mpirun, Slurm) started this process as one of several.
bool qn_launch_has_others(void);

#endif
