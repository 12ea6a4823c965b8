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

static const qn_session_opts at_namespace_scope = QN_INIT(qn_session_opts);

bool open_from_cpp(const char *path) {
    qn_engine_opts opts = QN_INIT(qn_engine_opts);
    qn_engine_info info = QN_INIT(qn_engine_info);
    qn_engine *engine = nullptr;
    qn_session *session = nullptr;
    opts.n_threads = 4;
    const bool is_open = qn_engine_open(&engine, path, &opts, nullptr) == QN_OK &&
                         qn_engine_get_info(&info, engine, nullptr) == QN_OK &&
                         qn_session_create(&session, engine, &at_namespace_scope, nullptr) == QN_OK;
    qn_session_destroy(session);
    qn_engine_close(engine);
    return is_open && info.n_threads == 4;
}
