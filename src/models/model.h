// A model: the architecture that a source names, its configuration, its graphs and its weights.
//
// A family is a config table, tensor tables and a build() that writes the graph; models.def lists
// the architectures. Building reads no weights; loading reads them all. Constant after that.
#ifndef QN_MODELS_MODEL_H
#define QN_MODELS_MODEL_H

#include "models/model_export.h"
#include "models/net.h"

// Positions that 32 bits count with room to spare; a file that claims more gets this many.
enum { QN_MAX_CONTEXT = 1 << 30 };

typedef struct qn_family {
    const char *arch;  // GGUF's general.architecture
    bool reads_images; // rows of a vision tower may stand for tokens
    size_t config_size;
    const qn_config_row *rows; // numbers of its own, besides the common ones
    size_t n_rows;
    // Fills the rest of `config`, whose first member is qn_hparams, after common and own rows.
    qn_status (*read)(void *config, const qn_config_reader *reader, qn_arena *arena, qn_err *err);
    // Writes the graph; errors stay in the builder.
    void (*build)(qn_net *net, const void *config, const qn_config_reader *reader);
    // Writes the graph of the heads that predict further tokens; NULL where a family has none.
    void (*build_predict)(qn_net *net, const void *config, const qn_config_reader *reader);
    // Writes the GGUF keys that are in no row, and refuses a checkpoint that GGUF cannot express.
    qn_status (*export_keys)(qn_export *to, const void *config, qn_err *err);
} qn_family;

typedef struct qn_model {
    qn_arena arena;
    const qn_family *family;
    qn_hparams *hparams;   // beginning of the family's own config
    qn_graph graph;        // logits of the wanted rows
    qn_graph graph_hidden; // the same, with the residual stream as outputs
    // Empty where the model has no prediction head: the model with outputs QN_ROWS_LAST and
    // QN_ROWS_BEFORE, which also fills the cache of the head; and the head, which reads ids and,
    // as QN_ROWS_BEFORE, the model's rows of the tokens before, and has outputs of the same names
    // as the model.
    qn_graph graph_mtp, graph_predict;
    qn_weights weights;
    int64_t n_sets; // of adapters
} qn_model;

// Finds the architecture, reads the configuration and writes the graphs.
QN_MUST_CHECK qn_status qn_model_create(qn_model **out, const qn_source *source, qn_err *err);
// The same with adapters (NULL: none), which are read, and not used afterwards, and with another
// rotary scaling (NULL: as the files say).
QN_MUST_CHECK qn_status qn_model_create_adapted(qn_model **out, const qn_source *source,
                                                qn_adapters *adapters, const qn_rope_override *rope,
                                                qn_err *err);
void qn_model_destroy(qn_model *model);

// Declares all keys "architecture.*" of a checkpoint's model as GGUF has them. What GGUF cannot
// express is refused, naming the value. *to gets what belongs to the tensors.
QN_MUST_CHECK qn_status qn_model_export(qn_export *to, qn_model *model, const qn_source *source,
                                        qn_gguf_writer *writer, qn_err *err);

// The i-th number of the configuration, as it was read or with its default; false after the last.
typedef struct qn_model_number {
    const char *name; // as GGUF has it, without the architecture, or as config.json has it
    bool is_int;
    int64_t i;
    double f;
} qn_model_number;
bool qn_model_config(qn_model_number *out, const qn_model *model, size_t i);

// Tensors of the source that no graph uses, prediction heads and other known extras aside: how
// many, and the first ones by name into `to` ("a, b, ...").
size_t qn_model_unused(const qn_model *model, const qn_source *source, char *to, size_t size);

// Pointers to the weights of a graph, by value (release with qn_free); weights must be loaded.
QN_MUST_CHECK qn_status qn_model_params(const void ***out, const qn_model *model,
                                        const qn_graph *graph, qn_err *err);

#endif
