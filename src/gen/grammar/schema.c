#include "gen/grammar/object.h"

qn_status qn_front_schema(int32_t *root, qn_ast *ast, qn_str text, qn_err *err) {
    (void)root;
    (void)ast;
    (void)text;
    return QN_FAIL(err, UNSUPPORTED, "grammar: JSON Schema is not supported yet");
}
