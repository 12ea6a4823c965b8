// The tokenizer: text <-> token ids, from GGUF keys, a tokenizer.json or a tokenizer.model.
//
//   text -> (special tokens cut out) -> normaliser -> pre-tokenizer -> model (BPE, unigram) -> ids
//   ids  -> pieces -> bytes (byte-level letters, <0xNN>, U+2581 mapped back) -> text
//
// The public names (qn_tokenizer and its calls) are in quern.h; here are the constructors.
// Constant after opening: threads may share one. Every loop has a bound in the length of its input.
#ifndef QN_TOKENIZER_TOKENIZER_H
#define QN_TOKENIZER_TOKENIZER_H

#include "core/err.h"
#include "formats/gguf_write.h"

// From a GGUF's tokenizer.ggml.* keys, or from the files next to a safetensors checkpoint:
// tokenizer.json, else tokenizer.model (with tokenizer_config.json for the special tokens).
QN_MUST_CHECK qn_status qn_tokenizer_from_source(qn_tokenizer **out, const qn_source *source,
                                                 qn_err *err);
// From file contents; `name` is for messages.
QN_MUST_CHECK qn_status qn_tokenizer_from_json(qn_tokenizer **out, const char *text, size_t size,
                                               const char *name, qn_err *err);
QN_MUST_CHECK qn_status qn_tokenizer_from_model(qn_tokenizer **out, const char *bytes, size_t size,
                                                const char *name, qn_err *err);

// As qn_tokenizer_get_info, for the library itself; borrowed.
const qn_tokenizer_info *qn_tokenizer_own_info(const qn_tokenizer *tokenizer);

// Whether an id is that of a token: no hole, and none of the unused ones named [PADn] that fill a
// GGUF vocabulary up to the rows of the embedding.
bool qn_tokenizer_has(const qn_tokenizer *tokenizer, int32_t id);
// The highest id of a token, plus one; *has_holes: some ids below are not of tokens.
int32_t qn_tokenizer_end(const qn_tokenizer *tokenizer, bool *has_holes);

// Declares a checkpoint's tokenizer and chat template as the tokenizer.* keys of a GGUF file. What
// GGUF cannot express is refused by name; what its readers usually leave out is logged.
typedef struct qn_tokenizer_export {
    qn_gguf_writer *to;
    const qn_source *source; // a checkpoint
    int64_t n_vocab;         // rows of the embedding; ids without a token get an unused one
    qn_log_fn *log;          // may be NULL
    void *log_arg;
} qn_tokenizer_export;
QN_MUST_CHECK qn_status qn_tokenizer_export_keys(const qn_tokenizer_export *export, qn_err *err);

#endif
