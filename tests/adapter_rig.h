// Low-rank adapters for tests: random ones for every matrix of a small model's layers, as PEFT
// writes them and as GGUF has them, and the model with their product added to its weights.
#ifndef QN_TESTS_ADAPTER_RIG_H
#define QN_TESTS_ADAPTER_RIG_H

#include "model_writer.h"

#include <sys/stat.h>
#include <unistd.h>

typedef struct adapter_want {
    int64_t rank;
    double alpha;
    bool is_rank_root;  // use_rslora
    const char *module; // only matrices whose names hold this; NULL: all
    uint32_t seed;
} adapter_want;

static inline float adapter_number(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-24f - 0.5f;
}

static inline bool is_adapted(const model_tensor *t, const adapter_want *want) {
    return t->n_dims == 2 && strncmp(t->name, "model.layers.", 13) == 0 &&
           !strstr(t->name, ".experts.") && (!want->module || strstr(t->name, want->module));
}

static inline model_file *adapter_new(const char *config) {
    json_error_t why;
    model_file *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->config = json_loads(config, 0, &why);
    assert_non_null(m->config);
    return m;
}

static inline void add_random(model_file *m, const char *module, const char *end, int64_t rows,
                              int64_t columns, uint32_t *seed) {
    char name[MODEL_NAME];
    float *values = malloc((size_t)(rows * columns) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < rows * columns; i++) values[i] = adapter_number(seed) * 0.5f;
    snprintf(name, sizeof name, "base_model.model.%.100s.%s", module, end);
    model_add(m, name, QN_TYPE_F32, (const int64_t[]){rows, columns}, 2, values);
    free(values);
}

// "model.layers.0.mlp.up_proj.weight" without its end.
static inline void module_of(char *to, const char *name) {
    snprintf(to, MODEL_NAME, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

// An adapter for a checkpoint, in memory.
static inline model_file *adapter_make(const model_file *model, const adapter_want *want) {
    char config[512];
    snprintf(config, sizeof config,
             "{\"peft_type\": \"LORA\", \"r\": %d, \"lora_alpha\": %g, \"use_rslora\": %s,"
             "\"bias\": \"none\", \"target_modules\": \"all-linear\", \"lora_dropout\": 0.1,"
             "\"modules_to_save\": null, \"use_dora\": false, \"rank_pattern\": {}}",
             (int)want->rank, want->alpha, want->is_rank_root ? "true" : "false");
    model_file *m = adapter_new(config);
    uint32_t seed = want->seed;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const model_tensor *t = &model->tensors[i];
        char module[MODEL_NAME];
        if (!is_adapted(t, want)) continue;
        module_of(module, t->name);
        add_random(m, module, "lora_A.weight", want->rank, t->dims[1], &seed);
        add_random(m, module, "lora_B.weight", t->dims[0], want->rank, &seed);
    }
    assert_true(m->n_tensors > 0);
    return m;
}

// Writes the folder of PEFT.
static inline void adapter_write(const model_file *m, const char *folder) {
    static const char *const names[][2] = {{"config.json", "adapter_config.json"},
                                           {"model.safetensors", "adapter_model.safetensors"}};
    (void)mkdir(folder, 0700);
    model_write_checkpoint(m, folder, 1);
    for (int i = 0; i < 2; i++) {
        char from[1400], to[1400];
        snprintf(from, sizeof from, "%s/%s", folder, names[i][0]);
        snprintf(to, sizeof to, "%s/%s", folder, names[i][1]);
        assert_int_equal(rename(from, to), 0);
    }
}

static inline void adapter_remove(const char *folder) {
    char path[1400];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    remove(path);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    remove(path);
    rmdir(folder);
}

// --- GGUF ----------------------------------------------------------------------------------------

static inline const char *gguf_module(const char *hf) {
    static const char *const names[][2] = {
        {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},  {"mlp.gate", "ffn_gate_inp"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(hf, names[i][0]) == 0) return names[i][1];
    }
    fail_msg("no GGUF name for %s", hf);
    return "";
}

// GGUF files of llama have the pairs that rope turns side by side.
static inline void pair_rows_of_heads(model_tensor *t, int64_t head) {
    float *values = model_floats(t), *to = (float *)(void *)t->data;
    const int64_t columns = t->dims[1];
    for (int64_t r = 0; r < t->dims[0]; r++) {
        const int64_t at = r % head, from = r - at + at % 2 * (head / 2) + at / 2;
        memcpy(to + r * columns, values + from * columns, (size_t)columns * sizeof *to);
    }
    free(values);
}

// The same adapter as llama.cpp's converter writes it. head 0: rows stay in their order.
static inline model_file *adapter_gguf(const model_file *peft, const char *arch, double alpha,
                                       int64_t head) {
    char edits[256];
    model_file *m = calloc(1, sizeof *m);
    assert_non_null(m);
    snprintf(edits, sizeof edits,
             "key general.type str adapter; key adapter.type str lora;"
             "key general.architecture str %s; key adapter.lora.alpha f32 %.9g",
             arch, alpha);
    model_edit(m, edits);
    for (size_t i = 0; i < peft->n_tensors; i++) {
        const model_tensor *t = &peft->tensors[i];
        int layer;
        char module[64], which, name[MODEL_NAME];
        assert_int_equal(sscanf(t->name, "base_model.model.model.layers.%d.%63s", &layer, module),
                         2);
        char *end = strstr(module, ".lora_");
        assert_non_null(end);
        which = end[6] == 'A' ? 'a' : 'b';
        *end = 0;
        const char *gguf = gguf_module(module);
        snprintf(name, sizeof name, "blk.%d.%s.weight.lora_%c", layer, gguf, which);
        model_tensor *to = model_add(m, name, t->type, t->dims, 2, t->data);
        const bool is_turned = strcmp(gguf, "attn_q") == 0 || strcmp(gguf, "attn_k") == 0;
        if (head && which == 'b' && is_turned) pair_rows_of_heads(to, head);
    }
    return m;
}

// --- merging -------------------------------------------------------------------------------------

// Adds scale * b a to the weights of a checkpoint, in double, rounded once to float32.
static inline void adapter_merge(model_file *model, const model_file *peft, double scale) {
    for (size_t i = 0; i < model->n_tensors; i++) {
        model_tensor *t = &model->tensors[i];
        char module[MODEL_NAME], name[2 * MODEL_NAME];
        if (t->n_dims != 2) continue;
        module_of(module, t->name);
        snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
        const model_tensor *a = model_find(peft, name);
        snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
        const model_tensor *b = model_find(peft, name);
        if (!a || !b) continue;
        float *x = model_floats(a), *y = model_floats(b), *w = (float *)(void *)t->data;
        assert_int_equal(t->type, QN_TYPE_F32);
        const int64_t rank = a->dims[0];
        for (int64_t k = 0; k < model_count(t); k++) {
            const int64_t row = k / t->dims[1], column = k % t->dims[1];
            double sum = 0;
            for (int64_t j = 0; j < rank; j++)
                sum += (double)y[row * rank + j] * (double)x[j * t->dims[1] + column];
            w[k] = (float)((double)w[k] + scale * sum);
        }
        free(x);
        free(y);
    }
}

#endif
