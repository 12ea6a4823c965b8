#include "cli/user_config.h"

#include "cli/args.h"
#include "cli/foreign.h"
#include "cli/rivals.h"

#include "core/debug.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/real_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 1 << 20, LONGEST_KEY = 64 };

// One default, as it was found.
typedef struct kept {
    qn_rank rank;
    const qn_command *command; // whose table it is in; NULL: for all
    const char *key;           // without dashes
    const char *where;
    qn_toml_value value;
} kept;

typedef struct reader {
    qn_user_config *config;
    const qn_commands *all;
    kept *items; // owned
    size_t n, cap;
    qn_err *err;
} reader;

// --- the file ------------------------------------------------------------------------------------

qn_status qn_user_config_find(char **path, bool *must_exist, qn_err *err) {
    const qn_surroundings around = qn_surroundings_read();
    const bool is_none = around.config && strcmp(around.config, "none") == 0;
    // The specification of these folders says that a relative one does not count.
    const bool has_folder = around.config_home && *around.config_home == '/';
    const char *folder = has_folder ? around.config_home : around.home;
    qn_buf text = {0};
    *path = NULL;
    *must_exist = around.config != NULL;
    if (is_none || (!around.config && !folder)) return QN_OK;
    if (around.config)
        qn_buf_text(&text, around.config);
    else
        qn_buf_printf(&text, "%s%s/quern/config.toml", folder, has_folder ? "" : "/.config");
    return qn_buf_take(path, &text, err);
}

static qn_status read_file(qn_user_config *config, qn_err *err) {
    char *path, *text;
    size_t size;
    bool must_exist;
    QN_TRY(qn_user_config_find(&path, &must_exist, err));
    if (!path || (!must_exist && !qn_path_is_file(path) && !qn_path_is_folder(path))) {
        qn_free(path);
        return QN_OK;
    }
    config->path = path;
    qn_status status = qn_file_load(&text, &size, path, MAX_FILE, err);
    if (status) return must_exist ? qn_err_prefix(err, status, "QUERN_CONFIG") : status;
    status = qn_toml_parse(&config->toml, text, size, err);
    qn_free(text);
    return status ? qn_err_prefix(err, status, "%s", path) : QN_OK;
}

// --- names ---------------------------------------------------------------------------------------

// As it would be typed. False: no option has so long a name.
static bool type_key(char typed[LONGEST_KEY + 3], const char *key) {
    if (strlen(key) > LONGEST_KEY) return false;
    snprintf(typed, LONGEST_KEY + 3, "--%s", key);
    return true;
}

static qn_named find_key(const qn_command *command, const char *key) {
    char typed[LONGEST_KEY + 3];
    return type_key(typed, key) ? qn_option_find(command, typed, strlen(typed)) : (qn_named){0};
}

// What was probably meant by another program's name of an option; false: nothing to say.
static bool refuse_foreign(const kept *item, const qn_command *command, qn_err *err) {
    char typed[LONGEST_KEY + 3];
    const qn_foreign *foreign =
        type_key(typed, item->key) ? qn_foreign_find(command->name, typed, strlen(typed)) : NULL;
    if (foreign && foreign->ours &&
        qn_option_find(command, foreign->ours, strlen(foreign->ours)).option)
        (void)QN_FAIL(err, ARGUMENT, "%s: no option '%s'; did you mean '%s'?", item->where,
                      item->key, foreign->ours + 2);
    else if (foreign && foreign->hint)
        (void)QN_FAIL(err, ARGUMENT, "%s: no option '%s'; %s", item->where, item->key,
                      foreign->hint);
    else
        return false;
    return true;
}

// The nearest of all names that could have been meant; NULL: none is near. Without memory there is
// just no suggestion.
static const char *find_near(const char *key, const qn_commands *among) {
    size_t n = 0, max = 0;
    for (size_t i = 0; i < among->n; i++) max += among->items[i]->n_options;
    const char **names = qn_alloc(max, sizeof *names);
    for (size_t i = 0; names && i < among->n; i++) {
        for (size_t k = 0; k < among->items[i]->n_options; k++)
            names[n++] = among->items[i]->options[k].name + 2;
    }
    const char *near = qn_nearest(key, names, n);
    qn_free((void *)(uintptr_t)names);
    return near;
}

static qn_status refuse_key(const reader *r, const kept *item) {
    const qn_commands among = item->command ? (qn_commands){&item->command, 1} : *r->all;
    const char *owner = item->command ? item->command->name : "COMMAND";
    if (strcmp(item->key, "model") == 0)
        return QN_FAIL(r->err, ARGUMENT,
                       "%s: no option 'model'; the model is named on the command line",
                       item->where);
    for (size_t i = 0; i < among.n; i++) {
        if (refuse_foreign(item, among.items[i], r->err)) return QN_ARGUMENT;
    }
    const char *near = find_near(item->key, &among);
    if (near)
        return QN_FAIL(r->err, ARGUMENT, "%s: no option '%s'; did you mean '%s'?", item->where,
                       item->key, near);
    return QN_FAIL(r->err, ARGUMENT, "%s: no option '%s'; 'quern help %s' lists the options",
                   item->where, item->key, owner);
}

static qn_status check_name(const reader *r, const kept *item) {
    bool is_known = item->command && find_key(item->command, item->key).option;
    for (size_t i = 0; i < r->all->n && !item->command && !is_known; i++)
        is_known = find_key(r->all->items[i], item->key).option;
    return is_known ? QN_OK : refuse_key(r, item);
}

static qn_status refuse_table(const reader *r, const char *typed, const char *where) {
    const char **names = qn_alloc(r->all->n, sizeof *names);
    if (!names) return QN_NOMEM(r->err, "names");
    for (size_t i = 0; i < r->all->n; i++) names[i] = r->all->items[i]->name;
    const char *near = qn_nearest(typed, names, r->all->n);
    qn_free((void *)(uintptr_t)names);
    if (near)
        return QN_FAIL(r->err, ARGUMENT, "%s: no command '%s' for [%s]; did you mean '%s'?", where,
                       typed, typed, near);
    return QN_FAIL(r->err, ARGUMENT,
                   "%s: no command '%s' for [%s]; what is for all commands stands above the first "
                   "table",
                   where, typed, typed);
}

// --- all that is kept ----------------------------------------------------------------------------

static qn_status keep(reader *r, const kept *item) {
    void *items = r->items;
    const bool ok = qn_grow(&items, &r->cap, r->n + 1, sizeof *item);
    r->items = items;
    if (!ok || !item->key || !item->where) return QN_NOMEM(r->err, "defaults of options");
    QN_TRY(check_name(r, item));
    r->items[r->n++] = *item;
    return QN_OK;
}

// Lower case, as keys are; where it is from is the variable's name.
static qn_status keep_variable(reader *r, const char *variable, size_t size) {
    const size_t begin = strlen(qn_option_prefix);
    char *key = qn_arena_strdup(&r->config->texts, variable + begin, size - begin);
    for (char *at = key; at && *at; at++) {
        if (*at >= 'A' && *at <= 'Z') *at = (char)(*at - 'A' + 'a');
    }
    const kept item = {.rank = QN_RANK_VARIABLE,
                       .key = key,
                       .where = qn_arena_strdup(&r->config->texts, variable, size),
                       .value = {.kind = QN_TOML_STRING, .as.s = variable + size + 1}};
    return keep(r, &item);
}

static qn_status keep_entry(reader *r, const qn_toml_entry *entry) {
    const size_t n = strcspn(entry->name, ".");
    const bool is_general = !entry->name[n];
    char table[LONGEST_KEY + 1];
    snprintf(table, sizeof table, "%.*s", (int)(n < LONGEST_KEY ? n : LONGEST_KEY), entry->name);
    const qn_command *command = is_general ? NULL : qn_command_find(r->all, table);
    qn_buf where = {0};
    qn_buf_printf(&where, "%s: line %zu", r->config->path, entry->line);
    const kept item = {
        .rank = is_general ? QN_RANK_GENERAL : QN_RANK_COMMAND,
        .command = command,
        .key = is_general ? entry->name : entry->name + n + 1,
        .where = where.failed ? NULL : qn_arena_strdup(&r->config->texts, where.data, where.size),
        .value = entry->value};
    qn_buf_deinit(&where);
    if (item.where && !is_general && !command) return refuse_table(r, table, item.where);
    return keep(r, &item);
}

static qn_status keep_all(reader *r) {
    size_t at = 0, size;
    const char *variable;
    while ((variable = qn_option_variable(&at, &size))) QN_TRY(keep_variable(r, variable, size));
    QN_TRY(read_file(r->config, r->err));
    for (size_t i = 0; i < r->config->toml.n; i++)
        QN_TRY(keep_entry(r, &r->config->toml.entries[i]));
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

// Paths may begin with "~/", which no shell has seen.
static const char *expand_home(qn_arena *arena, const qn_option *option, const char *text) {
    const char *home = qn_surroundings_read().home;
    if (qn_path_kind_of(option->arg) == QN_PATH_NONE || strncmp(text, "~/", 2) != 0 || !home)
        return text;
    char *path = qn_path_join(home, text + 2);
    const char *copy = path ? qn_arena_strdup(arena, path, strlen(path)) : NULL;
    qn_free(path);
    return copy;
}

// A value as it would be typed; NULL: no memory. It lives as long as the arena, and the file's
// text.
static const char *value_text(qn_arena *arena, const qn_option *option,
                              const qn_toml_value *value) {
    const bool is_word = option->kind == QN_OPTION_WORD;
    char number[QN_REAL_TEXT];
    switch (value->kind) {
    case QN_TOML_STRING:
        return expand_home(arena, option, value->as.s);
    case QN_TOML_BOOL:
        return is_word ? (value->as.b ? "on" : "off") : value->as.b ? "true" : "false";
    case QN_TOML_INT:
        snprintf(number, sizeof number, "%" PRId64, value->as.i);
        break;
    default:
        if (!qn_double_text(number, value->as.f, 0)) return NULL;
    }
    return qn_arena_strdup(arena, number, strlen(number));
}

static qn_status set_one(qn_user_config *config, void *options, qn_named named,
                         const qn_toml_value *value, qn_err *err) {
    const char *text = value_text(&config->texts, named.option, value);
    if (!text) return QN_NOMEM(err, named.option->name);
    QN_TRY(qn_option_set(options, named.option, text, err));
    if (!named.is_off) return QN_OK;
    bool *flag = (bool *)((char *)options + named.option->offset);
    *flag = !*flag;
    return QN_OK;
}

// [1, 2] as "1,2".
static qn_status set_list(qn_user_config *config, void *options, const qn_option *option,
                          const qn_toml_value *value, qn_err *err) {
    qn_buf list = {0};
    for (size_t i = 0; i < value->as.array.n; i++) {
        const char *text = value_text(&config->texts, option, &value->as.array.items[i]);
        if (!text) list.failed = true;
        qn_buf_printf(&list, "%s%s", i ? "," : "", text ? text : "");
    }
    qn_status status = list.failed ? QN_NOMEM(err, option->name) : QN_OK;
    if (!status) status = qn_option_set(options, option, list.data ? list.data : "", err);
    qn_buf_deinit(&list);
    return status;
}

static qn_status set_value(qn_user_config *config, void *options, qn_named named,
                           const qn_toml_value *value, qn_err *err) {
    const qn_option *option = named.option;
    const bool is_array = value->kind == QN_TOML_ARRAY;
    if (named.is_off && option->kind != QN_OPTION_FLAG)
        return QN_FAIL(err, ARGUMENT, "%s: only flags have a name with 'no-' in front",
                       option->name);
    if (!is_array) return set_one(config, options, named, value, err);
    if (option->kind == QN_OPTION_INTS) return set_list(config, options, option, value, err);
    if (option->kind != QN_OPTION_TEXTS)
        return QN_FAIL(err, ARGUMENT, "%s: an array, want one value", option->name);
    for (size_t i = 0; i < value->as.array.n; i++)
        QN_TRY(set_one(config, options, named, &value->as.array.items[i], err));
    return QN_OK;
}

// --- giving --------------------------------------------------------------------------------------

static qn_status give(qn_user_config *config, qn_call *call, const qn_command *command,
                      const kept *item, qn_err *err) {
    const qn_named named = find_key(command, item->key);
    if (!named.option || (item->command && item->command != command)) return QN_OK;
    const size_t i = (size_t)(named.option - command->options);
    qn_origin *origin = &config->origins[i];
    if (origin->rank > item->rank) return QN_OK;
    if (origin->rank == item->rank)
        return QN_FAIL(err, ARGUMENT, "%s: '%s' is %s, which is also at %s", item->where, item->key,
                       named.option->name, origin->where);
    if (qn_rivals_exclude(command, call, config->origins, i, item->rank)) return QN_OK;
    const qn_status status = set_value(config, call->options, named, &item->value, err);
    if (status) return qn_err_prefix(err, status, "%s", item->where);
    *origin = (qn_origin){item->rank, item->where};
    return QN_OK;
}

// The strongest first, so that the others find its place taken.
static qn_status give_all(reader *r, qn_call *call, const qn_command *command) {
    qn_origin *origins = r->config->origins;
    for (size_t i = 0; i < command->n_options; i++)
        origins[i].rank = call->is_given[i] ? QN_RANK_TYPED : QN_RANK_NONE;
    for (int rank = QN_RANK_VARIABLE; rank >= QN_RANK_GENERAL; rank--) {
        for (size_t i = 0; i < r->n; i++) {
            if ((int)r->items[i].rank == rank)
                QN_TRY(give(r->config, call, command, &r->items[i], r->err));
        }
    }
    for (size_t i = 0; i < command->n_options; i++) {
        if (!origins[i].where || !qn_rivals_idle(command, call, i)) continue;
        qn_option_clear(call->options, &command->options[i]);
        origins[i] = (qn_origin){0};
    }
    return QN_OK;
}

qn_status qn_user_config_fill(qn_user_config *out, qn_call *call, const qn_command *command,
                              const qn_commands *all, qn_err *err) {
    *out = (qn_user_config){.origins = qn_alloc(command->n_options, sizeof *out->origins)};
    if (!out->origins) return QN_NOMEM(err, "defaults of options");
    reader r = {.config = out, .all = all, .err = err};
    qn_status status = keep_all(&r);
    if (!status) status = give_all(&r, call, command);
    qn_free(r.items);
    return status;
}

void qn_user_config_deinit(qn_user_config *config) {
    qn_free(config->path);
    qn_toml_deinit(&config->toml);
    qn_arena_deinit(&config->texts);
    qn_free(config->origins);
    *config = (qn_user_config){0};
}

// --- explaining ----------------------------------------------------------------------------------

// Whether a name stands in a text, and not as a part of a longer one.
static bool is_mentioned(const char *text, const char *name) {
    static const char letters[] = "-abcdefghijklmnopqrstuvwxyz0123456789";
    const size_t n = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at++) {
        const bool begins = at == text || !strchr(letters, at[-1]);
        if (begins && (!at[n] || !strchr(letters, at[n]))) return true;
    }
    return false;
}

void qn_user_config_explain(qn_buf *to, const qn_user_config *config, const qn_command *command,
                            const char *message) {
    const char *before = " (";
    for (size_t i = 0; config->origins && i < command->n_options; i++) {
        const qn_option *option = &command->options[i];
        const char *where = config->origins[i].where;
        const bool is_named = is_mentioned(message, option->name) ||
                              (option->alias && is_mentioned(message, option->alias));
        if (!where || !is_named || strstr(message, where)) continue;
        qn_buf_printf(to, "%s%s: %s", before, option->name, where);
        before = ", ";
    }
    if (*before == ',') qn_buf_text(to, ")");
}
