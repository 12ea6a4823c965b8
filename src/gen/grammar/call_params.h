// The parameters of a call that is written as elements:
//     <parameter=NAME>\nvalue\n</parameter>\n
#ifndef QN_GEN_GRAMMAR_CALL_PARAMS_H
#define QN_GEN_GRAMMAR_CALL_PARAMS_H

#include "gen/grammar/calls.h"
#include "gen/grammar/grammar_int.h"

// All parameters of a schema, in its order; those that are not required may be left out.
QN_MUST_CHECK qn_status qn_gr_call_params(int32_t *out, qn_gr_ast *ast, const json_t *schema,
                                          const qn_grammar_opts *opts, qn_err *err);
// A JSON value for the front end of schemas, which reads text.
QN_MUST_CHECK qn_status qn_gr_call_schema(int32_t *out, qn_gr_ast *ast, const json_t *schema,
                                          const qn_grammar_opts *opts, qn_err *err);
// A copy that shares the values; NULL when memory is short.
json_t *qn_gr_call_copy(const json_t *object);

#endif
