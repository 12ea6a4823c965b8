// What the library knows of its objects, by value. The calls fail only for a NULL or a wrong size,
// which cannot be here; an index must be one that there is.
#ifndef QN_CLI_FACTS_H
#define QN_CLI_FACTS_H

#include "quern.h"

#define QN_CLI_FACTS(name, type, call, ...)                                                        \
    static inline type name(__VA_ARGS__) {                                                         \
        type out = QN_INIT(type);                                                                  \
        const qn_status status = call;                                                             \
        (void)status;                                                                              \
        return out;                                                                                \
    }
QN_CLI_FACTS(qn_engine_facts, qn_engine_info, qn_engine_get_info(&out, engine, NULL),
             const qn_engine *engine)
QN_CLI_FACTS(qn_tokenizer_facts, qn_tokenizer_info, qn_tokenizer_get_info(&out, tokenizer, NULL),
             const qn_tokenizer *tokenizer)
QN_CLI_FACTS(qn_tensor_facts, qn_tensor_info, qn_source_tensor_info(&out, source, i, NULL),
             const qn_source *source, size_t i)
QN_CLI_FACTS(qn_sample_facts, qn_sample_opts, qn_engine_sample_defaults(&out, engine, NULL),
             const qn_engine *engine)
QN_CLI_FACTS(qn_session_facts, qn_session_counts, qn_session_get_counts(&out, session, NULL),
             const qn_session *session)
QN_CLI_FACTS(qn_batch_facts, qn_batch_counts, qn_batch_get_counts(&out, batch, NULL),
             qn_batch *batch)
QN_CLI_FACTS(qn_cost_facts, qn_cost, qn_engine_cost(&out, engine, step, NULL),
             const qn_engine *engine, const qn_step_size *step)
#undef QN_CLI_FACTS

#endif
