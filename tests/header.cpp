// quern.h must be usable from C++: this file is only compiled, never run.
#include <quern.h>

const char *version_from_cpp() {
    qn_err err;
    qn_tokenizer *tokenizer = nullptr;
    if (qn_tokenizer_open(&tokenizer, "model.gguf", &err) != QN_OK)
        return err.message[0] ? "" : nullptr;
    qn_tokenizer_close(tokenizer);
    return qn_version();
}
