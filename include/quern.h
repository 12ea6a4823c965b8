// quern.h: the public interface of Quern, a compiler and runtime for language models.
// long: one header is what a caller includes
//
// Objects, from the outside in:
//   qn_engine     a loaded model. Constant after opening; share it freely between threads.
//   qn_session    one sequence of tokens. One thread at a time. Ends before its engine does.
//   qn_grammar    what an answer may look like. Constant.
//   qn_batch      many answers computed together: one thread steps, any thread adds and removes.
//                 Ends before its engine does.
//   qn_snapshot   a session at one moment. Used on the thread of its session; ends before it does.
//   qn_sampler    chooses tokens from logits that the caller has. One thread at a time.
//   qn_tokenizer  text <-> token ids. Constant; an engine has one, a file can be opened alone.
//   qn_source     the keys and tensors of a model file, read without loading the weights.
//   qn_template   messages -> text of a prompt. Constant.
//   qn_chat       the messages of a conversation. One thread at a time.
//   qn_image      a picture. Constant.
//   qn_chat_turn  the prompt of an answer, and the options of its row. Constant.
//   qn_chat_reply an answer in a conversation while it comes. One thread at a time.
//   qn_parts      reasoning, text and tool calls of an answer while it comes. One thread at a time.
//   qn_decoder    ids -> text while streaming; holds back bytes of an unfinished character. One
//                 thread at a time.
//   qn_stop_flag  stops calls from any thread.
//
// Rules:
//   - Every fallible function returns qn_status (QN_OK == 0) and takes `qn_err *err` last. A failed
//     call leaves its out-parameters untouched, unless its comment says otherwise.
//   - NULL: `err` may be NULL, and so may every parameter named `opts` or `fn` (defaults; no
//     callback) unless its comment says otherwise, every list or text of length 0, and whatever is
//     released (qn_free and all functions that close, destroy or deinit). Other pointers may be
//     NULL only where the comment of the function says so. Anywhere else, passing NULL returns
//     QN_ARGUMENT naming the parameter; functions that do not return qn_status must not get NULL.
//   - Results come through the first parameter. "Borrowed" pointers belong to the object they came
//     from; "owned" ones are released with the function that the comment names.
//   - Structs grow. Those for options and results begin with their size, so that programs and
//     bindings go on working with later versions of the library, and with earlier ones:
//         qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 4);
//         qn_engine_info info = QN_INIT(qn_engine_info);
//     New fields come at the end, and zero means what the library did before. It reads the first
//     `size` bytes of options, and takes the rest as zero, the default; options of a later version
//     are fine as long as the part that this one does not know is zero. Of a result it writes as
//     many bytes as the smaller of both sizes, its own and `size`. A size of 0, or less than the
//     struct ever had, is QN_ARGUMENT. In structs that a callback is given, `size` says how much of
//     them the library has filled.
//     These have no size and will never change: qn_err, and the items of lists: qn_bias,
//     qn_text_range, qn_token_logprob, qn_prompt, qn_tool_call, qn_adapter, qn_model_file.
//   - The library never prints, exits or aborts; running out of memory is an error like any other.

#ifndef QUERN_H
#define QUERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_VERSION_MAJOR 0
#define QN_VERSION_MINOR 1
#define QN_VERSION_PATCH 0

#if defined(__GNUC__)
#define QN_MUST_CHECK __attribute__((warn_unused_result))
#define QN_API        __attribute__((visibility("default")))
#else
#define QN_MUST_CHECK
#define QN_API
#endif

// A struct with its size set. In C, fields may follow: QN_INIT(qn_engine_opts, .n_threads = 4), and
// &QN_INIT(...) is an argument; QN_INITIALIZER is the same for static objects and tables. In C++,
// set fields afterwards. Bindings set `size` to the bytes of the struct that they know, and the
// rest to zero.
#ifdef __cplusplus
#define QN_INIT(type)                                                                              \
    ([] {                                                                                          \
        type init_ = type();                                                                       \
        init_.size = sizeof init_;                                                                 \
        return init_;                                                                              \
    }())
#else
#define QN_INIT(...)            QN_INIT_TYPE(__VA_ARGS__, )
#define QN_INIT_TYPE(type, ...) ((type)QN_INITIALIZER_FIELDS(type, __VA_ARGS__))
#define QN_INITIALIZER(...)     QN_INITIALIZER_FIELDS(__VA_ARGS__, )
#define QN_INITIALIZER_FIELDS(type, ...)                                                           \
    { .size = sizeof(type), __VA_ARGS__ }
#endif

// --- status and errors ---------------------------------------------------------------------------

// clang-format off
#define QN_STATUS_MAP(X)                                            \
    X(OK,          "ok")                                            \
    X(IO,          "a file could not be read or written")           \
    X(FORMAT,      "the input is damaged or not what it claims")    \
    X(UNSUPPORTED, "valid, but not supported")                      \
    X(ARGUMENT,    "invalid argument")                              \
    X(LIMIT,       "a limit was exceeded")                          \
    X(MEMORY,      "out of memory")                                 \
    X(STATE,       "called in the wrong order")                     \
    X(NUMERIC,     "the computation broke down")                    \
    X(STOPPED,     "stopped by the caller")
// clang-format on

typedef enum qn_status {
#define QN_STATUS_ENUM(name, text) QN_##name,
    QN_STATUS_MAP(QN_STATUS_ENUM)
#undef QN_STATUS_ENUM
        QN_STATUS_COUNT
} qn_status;

// Details of a failure; the storage is the caller's. `message` is one line of UTF-8 that names the
// object and both values; `file` and `line` say where in the library it was raised.
typedef struct qn_err {
    int line;
    qn_status status;
    const char *file;
    char message[488];
} qn_err;

// A short name ("FORMAT") of a status, never NULL.
QN_API const char *qn_status_name(qn_status status);
// The version of the library, "major.minor.patch".
QN_API const char *qn_version(void);

// Releases memory that the library handed over ("owned"); NULL is fine.
QN_API void qn_free(void *p);

// --- model files ---------------------------------------------------------------------------------

typedef struct qn_source qn_source;

// A key as text: `value` is JSON (a string is quoted); long arrays are cut after `max` elements
// and end in ", ... N in all]".
typedef struct qn_key_info {
    size_t size;
    const char *name; // borrowed
    const char *type; // borrowed: "u32", "array of string", ...
    char *value;      // owned: qn_free
} qn_key_info;

typedef struct qn_tensor_info {
    size_t size;
    const char *name; // borrowed
    const char *type; // borrowed: "Q4_K", ...
    int n_dims;
    int64_t dims[5]; // outermost first
    int64_t bytes;
} qn_tensor_info;

// A .gguf file (any part of a split set), a .safetensors file or index, or a checkpoint folder. The
// whole header is checked; no tensor is read.
QN_API QN_MUST_CHECK qn_status qn_source_open(qn_source **out, const char *path, qn_err *err);
QN_API void qn_source_close(qn_source *source);
QN_API size_t qn_source_n_keys(const qn_source *source);
QN_API QN_MUST_CHECK qn_status qn_source_key_info(qn_key_info *out, const qn_source *source,
                                                  size_t i, size_t max, qn_err *err);
QN_API size_t qn_source_n_tensors(const qn_source *source);
QN_API QN_MUST_CHECK qn_status qn_source_tensor_info(qn_tensor_info *out, const qn_source *source,
                                                     size_t i, qn_err *err);
// "GGUF" or "safetensors".
QN_API const char *qn_source_format(const qn_source *source);
// Bytes of all files of the set.
QN_API int64_t qn_source_file_bytes(const qn_source *source);

// Rows first ... first + n - 1 of the i-th tensor as floats: to (n, last of its dims). A tensor
// has as many rows as the product of its other dims (1 if there is none). A type that cannot be
// read is QN_UNSUPPORTED.
QN_API QN_MUST_CHECK qn_status qn_source_read_rows(float *to, const qn_source *source, size_t i,
                                                   int64_t first, int64_t n, qn_err *err);
// All keys as one JSON object, in the order of the file; *json is owned (qn_free). Arrays of more
// than `max` elements (vocabularies) are left out; 0: none are. Numbers that JSON does not have are
// texts: "NaN", "Infinity", "-Infinity".
QN_API QN_MUST_CHECK qn_status qn_source_config(char **json, const qn_source *source, size_t max,
                                                qn_err *err);

// Reads up to n bytes that begin at byte `at`, and returns how many: at least 1 and at most n, or
// less than 1 where it fails. Short reads go on; the same bytes may be asked for again.
typedef int64_t qn_read_fn(void *arg, void *to, size_t n, int64_t at);

// A file of a model that the caller keeps, in memory or wherever; will never change.
typedef struct qn_model_file {
    const char *name; // without folders: "model.gguf", "config.json", "tokenizer.json"
    const void *data; // its `size` bytes; NULL: `read` reads them
    int64_t size;
    qn_read_fn *read; // called by several threads at a time
    void *arg;
} qn_model_file;

// A model from such files, as if they were all that is in a folder: with config.json and
// safetensors it is a checkpoint, else the first one is the model, or the first part of it. The
// list is copied, what it points to is not: data and readers are used until the source (or the
// engine) is closed.
QN_API QN_MUST_CHECK qn_status qn_source_open_files(qn_source **out, const qn_model_file *files,
                                                    size_t n, qn_err *err);

// --- stopping from elsewhere ---------------------------------------------------------------------

// Callbacks that return false stop the call that they belong to. A flag does that from any thread,
// and without a callback: it is given to calls by the field `stop` of their options, which look at
// it between steps of the model and many times a second while a template runs. It stays set until
// it is cleared, so a call that begins afterwards stops at once; the simplest use is one flag for
// each request. A flag outlives the sessions, rows and calls that it was given to.
typedef struct qn_stop_flag qn_stop_flag;

QN_API QN_MUST_CHECK qn_status qn_stop_flag_create(qn_stop_flag **out, qn_err *err);
QN_API void qn_stop_flag_destroy(qn_stop_flag *flag);
// From any thread, and from a signal handler.
QN_API void qn_stop_flag_set(qn_stop_flag *flag);
QN_API void qn_stop_flag_clear(qn_stop_flag *flag);
QN_API bool qn_stop_flag_is_set(const qn_stop_flag *flag);

// --- tokenizer -----------------------------------------------------------------------------------

typedef struct qn_tokenizer qn_tokenizer;
typedef struct qn_decoder qn_decoder;

// Token ids of special meaning; -1: none.
typedef struct qn_tokenizer_info {
    size_t size;
    bool add_bos, add_eos; // what the model expects around a prompt
    const char *model;     // borrowed: "BPE", "SentencePiece BPE", "unigram"
    const char *pre;       // borrowed: name of the pre-tokenizer pattern, "" if it has none
    int32_t n_tokens;
    int32_t bos, eos, eot, unk, pad;
} qn_tokenizer_info;

// Bytes from .. to - 1 of a text.
typedef struct qn_text_range {
    size_t from, to;
} qn_text_range;

typedef struct qn_tokenize_opts {
    size_t size;
    bool special;  // recognise special tokens written in the text
    bool add_ends; // add the beginning (and end) token as the model expects
    // Byte ranges in which special tokens are still not recognised: ascending, not touching each
    // other, of a text that is UTF-8. NULL: none
    const qn_text_range *plain;
    size_t n_plain;
    // A text that has more tokens than this is not read to its end: QN_LIMIT, or with `cut` the
    // first ones alone. 0: no limit
    size_t max_tokens;
    bool cut;
    const qn_stop_flag *stop; // ends the call with QN_STOPPED; NULL: none
} qn_tokenize_opts;

// A model as for qn_source_open, or a tokenizer.json or tokenizer.model file.
QN_API QN_MUST_CHECK qn_status qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_err *err);
QN_API void qn_tokenizer_close(qn_tokenizer *tokenizer);
QN_API QN_MUST_CHECK qn_status qn_tokenizer_get_info(qn_tokenizer_info *out,
                                                     const qn_tokenizer *tokenizer, qn_err *err);
// *ids is owned (qn_free); *n may be 0. The text need not be valid UTF-8.
QN_API QN_MUST_CHECK qn_status qn_tokenize(int32_t **ids, size_t *n, const qn_tokenizer *tokenizer,
                                           const char *text, size_t size,
                                           const qn_tokenize_opts *opts, qn_err *err);
// *text is owned (qn_free), NUL-terminated, *size bytes long. Special tokens are left out unless
// `special`. Bytes that are not UTF-8 come out as U+FFFD.
QN_API QN_MUST_CHECK qn_status qn_detokenize(char **text, size_t *size,
                                             const qn_tokenizer *tokenizer, const int32_t *ids,
                                             size_t n, bool special, qn_err *err);
// The vocabulary's own spelling of a token (byte-level encoding included); NULL for an id that is
// outside it.
QN_API const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id, size_t *size);
// The bytes that a token stands for in the middle of a text, special tokens as they are spelled:
// part of a character, maybe. *bytes is owned (qn_free), NUL-terminated, *size bytes long.
QN_API QN_MUST_CHECK qn_status qn_tokenizer_bytes(char **bytes, size_t *size,
                                                  const qn_tokenizer *tokenizer, int32_t id,
                                                  qn_err *err);
// The id of a token spelled exactly so, special tokens included; -1 if there is none.
QN_API int32_t qn_tokenizer_find(const qn_tokenizer *tokenizer, const char *piece, size_t size);
// True for tokens that end an answer (end of text, end of turn).
QN_API bool qn_tokenizer_is_end(const qn_tokenizer *tokenizer, int32_t id);

// Streaming decode, one thread at a time. The tokenizer must outlive the decoder.
QN_API QN_MUST_CHECK qn_status qn_decoder_create(qn_decoder **out, const qn_tokenizer *tokenizer,
                                                 qn_err *err);
QN_API void qn_decoder_destroy(qn_decoder *decoder);
// The text that `id` completes; may be empty. Borrowed until the next call on this decoder.
QN_API QN_MUST_CHECK qn_status qn_decoder_next(const char **text, size_t *size, qn_decoder *decoder,
                                               int32_t id, qn_err *err);
// What is still held back, with U+FFFD for an unfinished character; the decoder starts again.
QN_API QN_MUST_CHECK qn_status qn_decoder_finish(const char **text, size_t *size,
                                                 qn_decoder *decoder, qn_err *err);

// Progress: `done` of `total` (bytes of weights, tokens of a prompt); false stops (QN_STOPPED).
typedef bool qn_progress_fn(void *arg, int64_t done, int64_t total);

// --- images --------------------------------------------------------------------------------------

// A picture, decoded. Models with a vision tower (qn_engine_opts.mmproj) read it as rows that stand
// in the sequence of tokens; docs/vision.md says how.
typedef struct qn_image qn_image;

// Asked before the pixels of a picture take memory, 3 bytes each: false refuses them (QN_MEMORY).
typedef bool qn_admit_fn(void *arg, int64_t pixels);

typedef struct qn_image_opts {
    size_t size;
    int64_t max_bytes;  // of the file; 0: 64 MiB
    int64_t max_pixels; // that its header says; 0: 2^26
    qn_admit_fn *admit; // for programs that hold many pictures; NULL: all are taken
    void *admit_arg;
} qn_image_opts;

// PNG, JPEG and WebP, told apart by their first bytes. Limits are checked before a pixel is
// decoded. To be destroyed.
QN_API QN_MUST_CHECK qn_status qn_image_open(qn_image **out, const char *path,
                                             const qn_image_opts *opts, qn_err *err);
// The bytes of such a file.
QN_API QN_MUST_CHECK qn_status qn_image_create(qn_image **out, const void *data, size_t size,
                                               const qn_image_opts *opts, qn_err *err);
// The same in a URL: "data:image/png;base64,...". Others are refused: nothing is fetched.
QN_API QN_MUST_CHECK qn_status qn_image_create_url(qn_image **out, const char *url, size_t size,
                                                   const qn_image_opts *opts, qn_err *err);
// Whoever was given it (a chat) keeps it.
QN_API void qn_image_destroy(qn_image *image);

typedef struct qn_image_info {
    size_t size;
    int64_t width, height; // as it is seen: EXIF orientation is applied
    uint64_t hash;         // of sizes and pixels: equal pictures have equal ones
} qn_image_info;
QN_API QN_MUST_CHECK qn_status qn_image_get_info(qn_image_info *out, const qn_image *image,
                                                 qn_err *err);

// --- chat templates ------------------------------------------------------------------------------

typedef struct qn_template qn_template;

typedef struct qn_template_opts {
    size_t size;
    // Called many times a second while the template runs, with the steps taken and the maximum that
    // it may take; false stops it. NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    const qn_stop_flag *stop; // ends the call with QN_STOPPED; NULL: none
} qn_template_opts;

// A chat template makes a prompt of messages. It is a program in the language of Jinja2, as
// transformers runs it, that comes with the model; it can read the request and nothing else, and is
// stopped when it takes too many steps or too much memory. Constant; threads may share it.
QN_API QN_MUST_CHECK qn_status qn_template_create(qn_template **out, const char *text, size_t size,
                                                  qn_err *err);
// The template of a model as for qn_source_open, or a .jinja file. Models may have several: `name`
// chooses one ("tool_use", ...); NULL: the default one.
QN_API QN_MUST_CHECK qn_status qn_template_open(qn_template **out, const char *path,
                                                const char *name, qn_err *err);
QN_API void qn_template_destroy(qn_template *chat_template);
// What it was made from, borrowed.
QN_API const char *qn_template_text(const qn_template *chat_template);
// For models that come without a template: the name of the i-th built-in one ("chatml", "gemma");
// NULL after the last.
QN_API const char *qn_template_builtin_name(size_t i);
// The same for people: "ChatML", "Gemma's format"; NULL if there is none of this name.
QN_API const char *qn_template_builtin_title(const char *name);
// The name of the first one that the vocabulary has the tokens for; NULL if there is none.
QN_API const char *qn_template_find_builtin(const qn_tokenizer *tokenizer);
QN_API QN_MUST_CHECK qn_status qn_template_create_builtin(qn_template **out, const char *name,
                                                          qn_err *err);
// The request is a JSON object, nested at most 128 deep: "messages", and if wanted "tools" (else
// none), "bos_token" and "eos_token" (else the model's), "add_generation_prompt" (else true), "now"
// (else the local time; "2026-01-02T03:04:05"), "kwargs" (names and values for the template). *text
// is owned (qn_free), NUL-terminated, *size bytes long (size may be NULL). A template that refuses
// the messages gives QN_ARGUMENT with its own words. A template runs on the stack of the calling
// thread, of which 256 KiB are enough.
QN_API QN_MUST_CHECK qn_status qn_template_render(char **text, size_t *size,
                                                  const qn_template *chat_template,
                                                  const char *request, size_t request_size,
                                                  const qn_template_opts *opts, qn_err *err);

// A prompt made of messages.
typedef struct qn_chat_prompt {
    size_t size;
    int32_t *ids; // (n)
    size_t n;
    size_t n_messages; // of the ids: before the generation prompt. A later prompt of the same
                       // conversation probably begins with these; see qn_session_mark
    bool is_guarded;   // false: the template changes the text of a message, which then could not be
                       // distinguished from the template's own text, so special tokens in it
                       // were parsed
    char *text;        // as the template rendered it; NUL-terminated, text_size bytes long
    size_t text_size;
    const qn_image **images; // (n_images) of the messages, in order (qn_chat_make_prompt)
    size_t n_images;
} qn_chat_prompt;

// Renders the request (see qn_template_render) and tokenises it. Special tokens are those of the
// template alone: in "content" and "reasoning_content" of the messages they are text like any
// other. The token that begins texts is added if the model wants it and the template did not write
// it. Release with qn_chat_prompt_deinit. For requests that are JSON already, as servers get them;
// qn_chat_make_prompt does the same for a conversation that the library keeps (qn_chat).
QN_API QN_MUST_CHECK qn_status qn_chat_prompt_create(qn_chat_prompt *out,
                                                     const qn_template *chat_template,
                                                     const qn_tokenizer *tokenizer,
                                                     const char *request, size_t request_size,
                                                     const qn_template_opts *opts, qn_err *err);
QN_API void qn_chat_prompt_deinit(qn_chat_prompt *prompt);

// --- conversations -------------------------------------------------------------------------------

// The messages of a conversation and the tools that are offered: plain data, from which templates
// make prompts. One thread at a time.
typedef struct qn_chat qn_chat;

// A call of a tool in a message; will never change.
typedef struct qn_tool_call {
    const char *name;
    const char *arguments; // the text of a JSON object
} qn_tool_call;

typedef struct qn_message {
    size_t size;
    const char *role; // "system", "user", "assistant", "tool", ...: what the template knows
    // UTF-8 without NUL, as all texts here; invalid bytes in an answer become U+FFFD
    const char *text;
    size_t text_size;
    const char *reasoning; // of an answer; templates may leave it out
    size_t reasoning_size;
    const qn_tool_call *calls; // of an answer
    size_t n_calls;
    // (n_images) come before the text; the chat keeps them: at most 64, and 2^28 pixels in all
    const qn_image *const *images;
    size_t n_images;
} qn_message;

QN_API QN_MUST_CHECK qn_status qn_chat_create(qn_chat **out, qn_err *err);
QN_API void qn_chat_destroy(qn_chat *chat);
QN_API size_t qn_chat_n_messages(const qn_chat *chat);
// Appends a message, which is copied. One with the role "tool" answers the first open call before.
QN_API QN_MUST_CHECK qn_status qn_chat_add(qn_chat *chat, const qn_message *message, qn_err *err);
// The i-th message, without its calls and images, borrowed until the chat changes. `text` is NULL
// where the content is a list of parts (qn_chat_set_messages) other than images and one text.
QN_API QN_MUST_CHECK qn_status qn_chat_get(qn_message *out, const qn_chat *chat, size_t i,
                                           qn_err *err);
// Forgets the messages from the n-th on.
QN_API QN_MUST_CHECK qn_status qn_chat_truncate(qn_chat *chat, size_t n, qn_err *err);
// Sets or replaces the leading system message; NULL removes it.
QN_API QN_MUST_CHECK qn_status qn_chat_set_system(qn_chat *chat, const char *text, qn_err *err);
// All messages as JSON, in the form of requests to servers: a list of objects with "role",
// "content" (a text, or a list of parts), and whatever else the template knows. `what` names
// it in errors; NULL: "messages". Parts with an image ({"type": "image_url", "image_url": {"url":
// "data:image/png;base64,..."}}, or "image" with its "url") become {"type": "image"}, which is how
// all images are printed: without the picture. *json is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_chat_set_messages(qn_chat *chat, const char *json, size_t size,
                                                    const char *what, qn_err *err);
// For the images that the above decodes, from the next call on; NULL: the defaults. What the
// options point to must outlive the chat.
QN_API QN_MUST_CHECK qn_status qn_chat_set_image_opts(qn_chat *chat, const qn_image_opts *opts,
                                                      qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_chat_print_messages(char **json, const qn_chat *chat,
                                                      qn_err *err);
// The tools that templates tell the model of, a JSON list of objects; json NULL: none. `what` as
// above; NULL: "tools".
QN_API QN_MUST_CHECK qn_status qn_chat_set_tools(qn_chat *chat, const char *json, size_t size,
                                                 const char *what, qn_err *err);

// Whether a template shall ask for reasoning, by the names that templates know (enable_thinking,
// thinking). AUTO: the template decides.
typedef enum qn_reasoning { QN_REASONING_AUTO, QN_REASONING_ON, QN_REASONING_OFF } qn_reasoning;

typedef struct qn_chat_prompt_opts {
    size_t size;
    qn_reasoning reasoning;
    bool no_generation_prompt; // leaves out the generation prompt
    size_t n_messages;         // the first ones alone; 0: all
    const char *kwargs; // further names and values for the template, a JSON object; NULL: none
    const char *now;    // "2026-01-02T03:04:05"; NULL: the local time
    qn_progress_fn *progress; // as in qn_template_opts
    void *progress_arg;
    const qn_stop_flag *stop; // the same
    // Messages that are left out, the oldest after a leading system message: where the prompt would
    // not fit into the context.
    size_t n_skipped;
    // A prompt that has more tokens than this, images apart, is not made: QN_LIMIT. 0: no limit
    size_t max_tokens;
} qn_chat_prompt_opts;

// The text of a prompt, as qn_template_render gives it (size may be NULL). The tokens that begin
// and end texts are the template's own if it came by qn_engine_template, else those of the
// tokenizer (which may be NULL: none).
QN_API QN_MUST_CHECK qn_status qn_chat_render(char **text, size_t *size, const qn_chat *chat,
                                              const qn_template *chat_template,
                                              const qn_tokenizer *tokenizer,
                                              const qn_chat_prompt_opts *opts, qn_err *err);
// Text and ids, as qn_chat_prompt_create gives them, without writing a request: for conversations
// that are built message by message; and the images of the messages. The ids have one image token
// for each, which qn_chat_prompt_expand makes as many as it has rows.
QN_API QN_MUST_CHECK qn_status qn_chat_make_prompt(qn_chat_prompt *out, const qn_chat *chat,
                                                   const qn_template *chat_template,
                                                   const qn_tokenizer *tokenizer,
                                                   const qn_chat_prompt_opts *opts, qn_err *err);
// Whether switching reasoning changes the prompt, for these messages; a template that rejects one
// of the two counts as changing it. UNKNOWN: it rejects both. opts->reasoning is ignored; tokenizer
// as for qn_chat_render.
typedef enum qn_reasoning_switch {
    QN_SWITCH_UNKNOWN,
    QN_SWITCH_NONE,
    QN_SWITCH_FOUND
} qn_reasoning_switch;
QN_API QN_MUST_CHECK qn_status qn_chat_find_switch(qn_reasoning_switch *out, const qn_chat *chat,
                                                   const qn_template *chat_template,
                                                   const qn_tokenizer *tokenizer,
                                                   const qn_chat_prompt_opts *opts, qn_err *err);

// --- parts of an answer --------------------------------------------------------------------------

// What a chat model writes has parts: reasoning, text that is the answer, calls of tools. They are
// told apart by tags, in the forms that Qwen, Hermes, Llama 3, Mistral, Gemma 4 and gpt-oss use
// (docs/chat.md), while the text comes; tags are not part of any text.
typedef struct qn_parts qn_parts;

typedef enum qn_part_kind { QN_PART_TEXT, QN_PART_REASONING, QN_PART_CALL } qn_part_kind;

// Borrowed for the call. Text and reasoning come chunk by chunk, a call at once.
typedef struct qn_part {
    size_t size;
    qn_part_kind kind;
    const char *text; // of a call: as the model wrote it
    size_t text_size;
    const char *name;      // of a call: the tool
    const char *arguments; // of a call: the text of a JSON object
} qn_part;
typedef void qn_part_fn(void *arg, const qn_part *part);

typedef struct qn_parts_opts {
    size_t size;
    const qn_tokenizer *tokenizer; // says which tags are special tokens; NULL: none are
    bool bare_calls;    // tools were offered: an answer that is a JSON object with "name" and
                        // "parameters" is a call, as Llama 3 writes them
    const char *prompt; // text that ends in an open reasoning block: the answer begins inside it
    size_t prompt_size;
} qn_parts_opts;

// The state of one answer. One thread at a time.
QN_API QN_MUST_CHECK qn_status qn_parts_create(qn_parts **out, const qn_parts_opts *opts,
                                               qn_err *err);
QN_API void qn_parts_destroy(qn_parts *parts);
// The options for the answer to a prompt of this chat; they borrow the prompt's text. tokenizer may
// be NULL.
QN_API QN_MUST_CHECK qn_status qn_chat_get_parts_opts(qn_parts_opts *out, const qn_chat *chat,
                                                      const qn_tokenizer *tokenizer,
                                                      const qn_chat_prompt *prompt, qn_err *err);
// A further chunk of the answer, to a callback that must not be NULL; `token`: the one that it came
// with, whose text may be empty because it is special; -1: none.
QN_API QN_MUST_CHECK qn_status qn_parts_feed(qn_parts *parts, int32_t token, const char *text,
                                             size_t size, qn_part_fn *fn, void *arg, qn_err *err);
// The answer has ended: what was held back, to a callback that must not be NULL. A call that is not
// whole comes as text.
QN_API QN_MUST_CHECK qn_status qn_parts_finish(qn_parts *parts, qn_part_fn *fn, void *arg,
                                               qn_err *err);

// --- engine --------------------------------------------------------------------------------------

typedef struct qn_engine qn_engine;
typedef struct qn_session qn_session;

typedef enum qn_log_level { QN_LOG_ERROR, QN_LOG_WARNING, QN_LOG_INFO, QN_LOG_DEBUG } qn_log_level;

// One line without a newline. Called only on the thread that is inside a qn_ call.
typedef void qn_log_fn(void *arg, qn_log_level level, const char *message);

// How activations are rounded for quantised weights: `exact` 12 bits, 16 before a delta rule;
// `balanced` 8 before gate and up projections, else 12; `fast` 8. Unquantised weights: not at all.
// `tensor`, on GPUs alone: as `exact`, but products are summed in the order of their matrix units,
// so that results are close to those of the CPU, not equal; as ever, they do not depend on company.
typedef enum qn_numerics {
    QN_NUMERICS_EXACT,
    QN_NUMERICS_BALANCED,
    QN_NUMERICS_FAST,
    QN_NUMERICS_TENSOR,
} qn_numerics;
// How the KV cache is stored. AUTO: f32 for unquantised models, f16 for quantised ones. Q8_0R and
// Q4_0R rotate keys and values before they are rounded, so that large numbers spread over the head.
// Not every device has all of them; one that lacks a type refuses it by name.
typedef enum qn_cache_type {
    QN_CACHE_AUTO,
    QN_CACHE_F32,
    QN_CACHE_F16,
    QN_CACHE_Q8_0,
    QN_CACHE_Q4_0,
    QN_CACHE_Q8_0R,
    QN_CACHE_Q4_0R
} qn_cache_type;
// How compiled plans are kept: one for each range of sizes (powers of two), one for each size, or
// one that is bound again for each size. Changes no result.
typedef enum qn_plan_policy {
    QN_PLANS_AUTO, // as the profile says, else bucketed
    QN_PLANS_BUCKETED,
    QN_PLANS_EXACT,
    QN_PLANS_DYNAMIC
} qn_plan_policy;

// How the folder of qn_engine_opts.cache_dir is used. It counts only if it belongs to this user or
// to root and nobody else may write to it, and links in it are never followed; anything ignored is
// logged as a warning. Whatever is in the folder, nothing outside it is touched. Packed weights are
// mapped: a file that is shortened in place, or a disk that fails, ends the process with SIGBUS
// unless it handles that signal.
typedef enum qn_cache_use {
    QN_CACHE_DIR_KEEP,  // created if absent; missing files are written; failure is only a warning
    QN_CACHE_DIR_FOUND, // read only, and only if it was filled in this place: for a folder that
                        // nobody named, but that lies beside a model
    QN_CACHE_DIR_FILL   // as KEEP, the plans too, as text for people; failure is an error
} qn_cache_use;

// A low-rank adapter (LoRA) for a model; will never change. Adapters of one set are applied
// together, and a row of the model uses one set or none: to use an adapter alone and with others,
// name it in several sets. Sets are numbered from 1 without gaps.
typedef struct qn_adapter {
    const char *path; // GGUF (general.type "adapter"), or a folder as PEFT writes it
    float scale;      // times the adapter's own scale: 1 as it was trained
    int64_t set;      // 0: 1
} qn_adapter;

// Which set of adapters is used, where an option asks: 0 the first, if the engine has any (in a row
// of a batch: that of its session); n set n; -1 none. Rows without adapters have the bits that they
// have in an engine without any, and what is kept of earlier prompts is never shared between sets.
enum { QN_NO_ADAPTER = -1 };

// Of qn_engine_opts.gpu_layers. AUTO: as many as fit in the free memory of the GPUs with all that a
// session of qn_engine_opts.gpu_context tokens takes there; none if not even one does.
enum { QN_GPU_LAYERS_AUTO = -1, QN_GPU_LAYERS_NONE = -2 };

// How the processes that a launcher (mpirun, Slurm) started share a model.
typedef enum qn_split {
    QN_SPLIT_NONE,    // this process computes alone
    QN_SPLIT_TENSORS, // every rank has a share of every matrix, of heads and of the vocabulary
    QN_SPLIT_LAYERS,  // every rank has some layers, and hands rows to the next
    QN_SPLIT_AUTO     // the one that is predicted to be faster
} qn_split;

// Machines with several nodes of memory. Changes no result.
typedef enum qn_numa_use {
    // Threads are divided among the nodes and pinned to their CPUs, and weights lie on the node of
    // the threads that read them: where this process may use all CPUs, and has one for each thread.
    QN_NUMA_AUTO,
    QN_NUMA_OFF // threads run anywhere, and memory lies where the system puts it
} qn_numa_use;

typedef struct qn_engine_opts {
    size_t size;
    int n_threads;   // 0: all that this process may use
    bool no_weights; // build the model, load no weights: for looking at it
    // The reference interpreter in float32 throughout: slow, and the oracle for everything else.
    // Such an engine has logits and the naive step only.
    bool reference;
    // Load the prediction head (MTP) too, for speculative decoding and for its logits. A model
    // without one is an error.
    bool mtp;
    qn_numerics numerics;
    qn_cache_type cache_type;
    qn_plan_policy plans;
    const char *cache_dir; // folder that keeps packed weights; NULL: none
    qn_cache_use cache_use;
    qn_log_fn *log; // NULL: silent
    void *log_arg;
    qn_progress_fn *progress; // NULL: none
    void *progress_arg;
    // Where the model runs: "cpu", "cpu:avx2", "ref"; several with commas share the layers, in this
    // order. NULL: the best of this machine. Changes no result.
    const char *device;
    // The vision tower: a GGUF file ("mmproj") or a checkpoint. NULL: that of the model's own
    // checkpoint, loaded when the first image comes; a model without one refuses images.
    const char *mmproj;
    int64_t image_pixels; // larger images are made smaller; 0: only as the model's own limit says
    const qn_adapter *adapters; // (n_adapters), read while the engine is opened; NULL: none
    size_t n_adapters;
    // The text of a config.json, in place of the checkpoint's own, which may be missing then. With
    // a GGUF file, whose keys say everything, it is an error. NULL: none
    const char *config;
    // A profile (docs/caches.md) in place of the one beside the weights: the path of a file, or its
    // text (of a .quern.toml); an empty text is no profile at all. NULL: none is given
    const char *profile, *profile_text;
    // How plans are kept in steps of several rows, and in steps of one row for each sequence: these
    // win over `plans`, and that over the profile. Capacities: plans that are kept; 0: as the
    // profile says, else 24; at most 4096. Change no result.
    qn_plan_policy prefill_plans, decode_plans;
    int64_t prefill_capacity, decode_capacity;
    // Mixture of experts: how many experts of each layer are kept in memory, or how many bytes the
    // experts of all layers may take. The others are read from the packed weights of the cache
    // folder when a step needs them, by a thread of its own; the folder must have them ('quern
    // compile') or be writable. Changes no result. Both 0: all if they fit, else what memory leaves
    // less 1.5 GB. Fewer than a row is routed to, or a model without experts, is an error.
    int64_t expert_budget, expert_budget_bytes;
    // Where `device` names GPUs: how many layers they have, the last ones, with what comes after
    // them; the embedding and the layers before stay on the CPU. 0, and more than the model has:
    // all of them; else QN_GPU_LAYERS_AUTO or _NONE. Changes no result.
    int64_t gpu_layers;
    int64_t gpu_context; // that QN_GPU_LAYERS_AUTO leaves room for; 0: 4096. Never more than the
                         // model's limit
    // One model over several processes; see qn_engine_follow. Changes no result.
    qn_split split;
    const char *shares;      // of QN_SPLIT_LAYERS: a number for each rank, as in "3,1"; NULL: as
                             // fast as each of them was measured to be
    int64_t rank_timeout_ms; // max wait for another rank within a step; 0: 60,000
    // Ends waits for other ranks that take long, a quarter of a second (QN_STOPPED); must outlive
    // the engine. NULL: none
    const qn_stop_flag *stop;
    // Longer contexts than the model's files say: positions are scaled by "linear" or "yarn", with
    // this factor, from the context that the model was trained with (0: as its files say), and the
    // context is that much longer. "none": no scaling, whatever the files say. NULL: as they say.
    // Changes results.
    const char *rope_scaling;
    double rope_factor;
    int64_t rope_original;
    int64_t numa; // of qn_numa_use
} qn_engine_opts;

typedef struct qn_engine_info {
    size_t size;
    const char *architecture; // borrowed: "qwen3", ...
    const char *name;         // borrowed; the file's own name for the model, "" if it has none
    int64_t n_layers, width, n_heads, n_kv_heads, head_size, ffn_width, n_vocab, n_experts;
    int64_t context;      // longest sequence the model was made for
    int64_t n_parameters; // weights used by the graph, tied ones counted once; without adapters
    int64_t weight_bytes; // as loaded
    int n_threads;
    const char *device;     // borrowed: "cpu:avx512", ...; several with commas
    const char *cache_type; // borrowed: "f16", ...
    const char *profile; // borrowed: path of the profile file that was applied; "" if there is none
    int64_t cached_bytes; // of the weights, that came ready from the cache folder
    int64_t n_adapter_sets;
    int rank, n_ranks; // of this process: 0 of 1 where the model is not split
    qn_split split;    // what QN_SPLIT_AUTO has chosen
} qn_engine_info;

// How experts were kept in memory and read, since the engine was opened. With all of them in
// memory nothing is counted but sizes.
typedef struct qn_expert_stats {
    size_t size;
    int64_t n_layers;              // with experts; 0: the model has none
    int64_t n_experts, n_used;     // of a layer; that a row is routed to
    int64_t n_resident;            // of a layer, kept in memory
    int64_t pool_bytes;            // that these take
    int64_t steps;                 // of all sessions
    int64_t hits, misses;          // experts of a step that were there, and that were not
    int64_t promotions, demotions; // experts that were read, and that made room
    int64_t prefetched;            // of the promotions: before a step asked for them
    int64_t bytes_read, stall_ns;  // time that steps waited for reading
    int64_t layer;                 // in the model; -1: the sum of all
} qn_expert_stats;

// Reads the whole model into memory, unless no_weights.
QN_API QN_MUST_CHECK qn_status qn_engine_open(qn_engine **out, const char *path,
                                              const qn_engine_opts *opts, qn_err *err);
// The same from files that the caller keeps (qn_source_open_files); qn_engine_opts.mmproj may name
// one of them. Nothing of it is kept in cache_dir.
QN_API QN_MUST_CHECK qn_status qn_engine_open_files(qn_engine **out, const qn_model_file *files,
                                                    size_t n, const qn_engine_opts *opts,
                                                    qn_err *err);
// Its sessions and batches must be destroyed first.
QN_API void qn_engine_close(qn_engine *engine);

// One model over several processes ("ranks"). Each opens the engine with the same model and
// options; opening fails on all of them if it fails on one. Rank 0 then uses it like any other: its
// sessions and batches are computed by all. The others call qn_engine_follow, which returns when
// rank 0 has closed its engine, or with what went wrong; sessions of their own are an error
// (QN_STATE). A process has one such engine at a time.
QN_API QN_MUST_CHECK qn_status qn_engine_follow(qn_engine *engine, qn_err *err);
// Whether the engine can still compute: QN_OK, or what ended it for good (a GPU failed, a rank was
// lost). It has to be closed and opened again then. Asked from any thread.
QN_API QN_MUST_CHECK qn_status qn_engine_check(const qn_engine *engine, qn_err *err);
// How a model is shared, as JSON (owned: qn_free): bytes of weights and state of each rank,
// messages and bytes for each token, predicted tokens per second, and why this way was chosen.
// Every rank gets the same.
QN_API QN_MUST_CHECK qn_status qn_engine_split(char **json, const qn_engine *engine, qn_err *err);
// The whole configuration as one JSON object: "model" (sizes and settings of the architecture, with
// defaults where the file says nothing), "devices" (with their layers), "plans", "numerics",
// "cache", "memory", "adapters" (how many sets), "experts", "sampling" (the makers' settings).
// *json is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_engine_config(char **json, const qn_engine *engine, qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_engine_get_info(qn_engine_info *out, const qn_engine *engine,
                                                  qn_err *err);
// How many rows an image becomes: a grid of rows * columns, that many image tokens. A model without
// a vision tower is an error.
QN_API QN_MUST_CHECK qn_status qn_engine_measure_image(int64_t *rows, int64_t *columns,
                                                       const qn_engine *engine,
                                                       const qn_image *image, qn_err *err);
// Ids with one image token for each image, as templates write them, become ids with as many as the
// image has rows. *ids is owned (qn_free). `mark` (may be NULL) is a number of ids, such as
// qn_chat_prompt.n_messages, and becomes that number afterwards. Another number of image tokens
// than of images is QN_ARGUMENT with both.
QN_API QN_MUST_CHECK qn_status qn_engine_expand_images(int32_t **ids, size_t *n, size_t *mark,
                                                       const qn_engine *engine, const int32_t *from,
                                                       size_t n_from, const qn_image *const *images,
                                                       size_t n_images, qn_err *err);
// The same for a prompt of messages: its ids, n and n_messages.
QN_API QN_MUST_CHECK qn_status qn_chat_prompt_expand(qn_chat_prompt *prompt,
                                                     const qn_engine *engine, qn_err *err);
// How experts are kept. `layer` counts those with experts from 0; -1: all together. Other threads
// may run steps meanwhile.
QN_API QN_MUST_CHECK qn_status qn_engine_expert_stats(qn_expert_stats *out, const qn_engine *engine,
                                                      int64_t layer, qn_err *err);
// A picture (SVG; owned: qn_free) of which experts were used, layer by layer, over time. An engine
// with all experts in memory does not take note of that: QN_STATE.
QN_API QN_MUST_CHECK qn_status qn_engine_expert_svg(char **svg, const qn_engine *engine,
                                                    qn_err *err);
// How the engine compiles and keeps plans, for prefill and for decode, as the text of a profile
// file (docs/caches.md): what was asked for, what the profile beside the weights says, and
// defaults. *text is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_engine_profile(char **text, const qn_engine *engine, qn_err *err);
// Borrowed; NULL when the model came without a tokenizer.
QN_API const qn_tokenizer *qn_engine_tokenizer(const qn_engine *engine);
// The chat template that came with the model, as qn_template_open has it; to be destroyed. name may
// be NULL.
QN_API QN_MUST_CHECK qn_status qn_engine_template(qn_template **out, const qn_engine *engine,
                                                  const char *name, qn_err *err);

// The devices of this machine: names for qn_engine_opts, and a line about each; NULL after the
// last. Constants. The first is the default.
QN_API const char *qn_device_name(size_t i);
QN_API const char *qn_device_about(size_t i);

// More about a device. Strings are constants, but for `model`, which is filled.
typedef struct qn_device_info {
    size_t size;
    const char *name, *about;         // as above
    int64_t memory;                   // bytes of its own; 0: it uses the memory of this machine
    int compute_major, compute_minor; // compute capability of a GPU; 0, 0: it is none
    char model[64];                   // of a GPU: "NVIDIA H200"; else ""
} qn_device_info;
QN_API QN_MUST_CHECK qn_status qn_device_get_info(qn_device_info *out, size_t i, qn_err *err);
// Whether a device of that name can be opened here; the error says why not.
QN_API QN_MUST_CHECK qn_status qn_device_check(const char *name, qn_err *err);

typedef enum qn_graph_form { QN_GRAPH_TEXT, QN_GRAPH_SVG } qn_graph_form;
// `high` is what the model's family wrote, `mid` what the passes made of it, `low` the plan: kernel
// calls in order, with their buffers.
typedef enum qn_graph_stage { QN_STAGE_HIGH, QN_STAGE_MID, QN_STAGE_LOW } qn_graph_stage;

typedef struct qn_graph_opts {
    size_t size;
    qn_graph_stage stage;
    qn_graph_form form;
    int64_t rows, cached; // of a step: `low` shows addresses for it; rows 0: none
} qn_graph_opts;

// The model's graph; *text is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_engine_graph(char **text, const qn_engine *engine,
                                               const qn_graph_opts *opts, qn_err *err);

// What the compiler did: which fusions fired and why others did not; which op runs as what.
typedef enum qn_report { QN_REPORT_FUSION, QN_REPORT_DISPATCH } qn_report;
// *text is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_engine_report(char **text, const qn_engine *engine,
                                                qn_report report, qn_err *err);

// Memory that a session with a context of that many tokens needs, in bytes, once all of it is used.
// What is kept of earlier prompts (qn_session_opts.kept) and what forks have of their own comes on
// top.
typedef struct qn_memory {
    size_t size;
    int64_t weights, state, activations, total;
    int64_t program; // other memory of this process: code, tokenizer, plans; as measured now
    int64_t cache;   // part of state: the KV cache of every position
    int64_t device;  // part of total: in the memory of devices that have their own (GPUs)
} qn_memory;
// context 0: the model's own limit; chunk 0: the default (qn_session_opts).
QN_API QN_MUST_CHECK qn_status qn_engine_memory(qn_memory *out, const qn_engine *engine,
                                                int64_t context, int64_t chunk, qn_err *err);

// --- limits --------------------------------------------------------------------------------------

// What this machine can do, found by loops that do nothing else: reading is the median of many
// passes, the peaks are the best of many short runs. Other programs that run at the same time lower
// it.
typedef struct qn_limits {
    size_t size;
    int n_threads;
    const char *level; // of the loops: "avx512", ...; a constant
    double read_gbs;   // 10^9 bytes read from memory in a second
    double int8_tops;  // 10^12 operations on bytes, two for each multiply-add; 0: this level has no
                       // instruction for it
    double f32_gflops; // 10^9 operations on floats; 0: unknown
    double f16_tflops; // 10^12 operations of a GPU's matrix units on fp16, summed in floats; 0: it
                       // has none
} qn_limits;

// n_threads 0: all that this process may use. Takes a second or two, and for that time 2 GiB or a
// quarter of the free memory.
QN_API QN_MUST_CHECK qn_status qn_machine_limits(qn_limits *out, int n_threads, qn_err *err);
// The same of one device, by its name: "cpu", "cuda", "cuda:1". A GPU takes up to 2 GiB of its own
// memory meanwhile; it has no threads (0), and `level` is its name.
QN_API QN_MUST_CHECK qn_status qn_device_limits(qn_limits *out, const char *device, int n_threads,
                                                qn_err *err);

// A step: `rows` new tokens of `seqs` sequences together, each with `depth` tokens before them, and
// the logits after `outs` of the rows.
typedef struct qn_step_size {
    size_t size;
    int64_t rows, seqs, depth, outs;
} qn_step_size;

// What a step must read and compute at least. Matrices count as the model's file has them, and are
// read once; for experts, assuming no two rows choose the same one. The embedding table counts
// only where it is the output matrix too.
typedef struct qn_cost {
    size_t size;
    double weight_bytes;
    double state_bytes;        // KV cache and recurrent state
    double int_ops, float_ops; // with quantised and other matrices, two for each multiply-add
} qn_cost;
QN_API QN_MUST_CHECK qn_status qn_engine_cost(qn_cost *out, const qn_engine *engine,
                                              const qn_step_size *step, qn_err *err);

// --- logits --------------------------------------------------------------------------------------

// One prompt of several; will never change.
typedef struct qn_prompt {
    const int32_t *ids; // (n)
    size_t n;
    const struct qn_row_opts *opts; // of this one; NULL: the defaults
} qn_prompt;

// What a prompt is computed from where that is not its tokens alone: rows of numbers in place of
// their embeddings, and rope positions. The tokens still stand for these rows in the history (any
// ids will do). Both are copied. Models that scale their embeddings (Gemma) refuse rows. Not
// together with images, which are given so themselves; context shift is refused.
typedef struct qn_given {
    size_t size;
    const float *rows; // (n_rows, width) finite; NULL: none
    size_t n_rows;
    const int64_t *at; // (n_rows) the tokens that they replace, ascending; NULL: the first ones
    // (n, 3) sections t, h and w of all n tokens of the prompt, 0 to QN_MAX_POSITION; models with
    // one section read t. Tokens after the prompt count on from the largest. NULL: 0, 1, 2, ...
    const int32_t *positions;
} qn_given;
enum { QN_MAX_POSITION = (1 << 30) - 1 };

typedef struct qn_logits_opts {
    size_t size;
    bool all_rows; // logits after every token, not only after the last
    bool hidden;   // the residual stream too
    bool naive;    // all tokens in one step, whatever `chunk` says. Changes no result.
    bool mtp;      // logits of the prediction head too; the engine was opened with it
    int64_t chunk; // tokens per step; 0: the default. Changes no result. Steps of both are never
                   // longer than the profile's compile_seq_cap.
    // Called between steps and now and then inside one, on the calling thread, with the tokens that
    // are computed and all of them; false stops. NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    const qn_image *const *images; // (n_images) of the ids, as for qn_session_set_prompt_images
    size_t n_images;
    int64_t adapter;       // set of adapters (qn_adapter)
    const qn_given *given; // rows and positions of the ids; NULL: none
    // Logits after the last so many tokens, of one prompt; not with `all_rows` or `mtp`. 0: after
    // the last
    int64_t last_rows;
} qn_logits_opts;

// Caller storage, filled by qn_engine_logits, released by qn_logits_deinit.
typedef struct qn_logits {
    size_t size;
    int64_t n_rows, n_vocab;
    float *logits; // (n_rows, n_vocab)
    int64_t n_hidden, n_tokens, width;
    float *hidden; // (n_hidden, n_tokens, width): embedding, after each layer; the last after the
                   // final norm
    // (n_mtp, n_vocab) of the prediction head: row t, from the hidden state of token t and token
    // t + 1, is about token t + 2; the last row, or all of them. NULL: not asked for
    float *mtp;
    int64_t n_mtp;
} qn_logits;

// Logits for a sequence of token ids.
QN_API QN_MUST_CHECK qn_status qn_engine_logits(qn_logits *out, const qn_engine *engine,
                                                const int32_t *ids, size_t n,
                                                const qn_logits_opts *opts, qn_err *err);
// The same for steps that an earlier run recorded (QN_STEPS=FILE): all rows whose logits it wanted,
// or the last of them. The file can come from anywhere. Bit-identical to the run, on any CPU.
QN_API QN_MUST_CHECK qn_status qn_engine_replay(qn_logits *out, const qn_engine *engine,
                                                const char *path, const qn_logits_opts *opts,
                                                qn_err *err);
QN_API void qn_logits_deinit(qn_logits *logits);

// The same for several prompts, computed together: each gets exactly what it would get alone.
// `outs` are n_prompts results with their sizes set, all of one size. Of a prompt's own options,
// images, n_images, adapter and given are read; those of `opts` must not be set, and neither must
// `mtp`. Progress counts the tokens of all. After a failure no result is filled.
QN_API QN_MUST_CHECK qn_status qn_engine_logits_batch(qn_logits *outs, const qn_engine *engine,
                                                      const qn_prompt *prompts, size_t n_prompts,
                                                      const qn_logits_opts *opts, qn_err *err);

// --- embeddings ----------------------------------------------------------------------------------

// What becomes of the model's last hidden states (after the final norm), one for each token. AUTO:
// as the file says (pooling_type), else the mean.
typedef enum qn_pooling { QN_POOLING_AUTO, QN_POOLING_MEAN, QN_POOLING_LAST } qn_pooling;

typedef struct qn_embed_opts {
    size_t size;
    qn_pooling pooling;
    bool normalize; // to a length of 1
    int64_t chunk;  // tokens per step; 0: the default. Changes no result
    // Between steps, with the tokens of all prompts; false stops. NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    const qn_stop_flag *stop; // ends the call with QN_STOPPED; NULL: none
} qn_embed_opts;

// Caller storage, filled by the calls below, released by qn_embeddings_deinit.
typedef struct qn_embeddings {
    size_t size;
    int64_t n, width;
    float *rows; // (n, width)
    int64_t n_tokens;
} qn_embeddings;

// Embeddings of prompts, computed together: each is exactly what it would be alone. Of a prompt's
// own options, images, n_images, adapter and given are read.
QN_API QN_MUST_CHECK qn_status qn_engine_embed(qn_embeddings *out, const qn_engine *engine,
                                               const qn_prompt *prompts, size_t n_prompts,
                                               const qn_embed_opts *opts, qn_err *err);
// The same for NUL-terminated texts, whose special tokens are text like any other; beginning and
// end tokens are added as the model expects.
QN_API QN_MUST_CHECK qn_status qn_engine_embed_texts(qn_embeddings *out, const qn_engine *engine,
                                                     const char *const *texts, size_t n_texts,
                                                     const qn_embed_opts *opts, qn_err *err);
QN_API void qn_embeddings_deinit(qn_embeddings *embeddings);

// --- sessions ------------------------------------------------------------------------------------

// Added to the logit of a token, -1000 to 1000; -INFINITY: never.
typedef struct qn_bias {
    int32_t token;
    float bias;
} qn_bias;

// How many tokens a step looks back, where a number does not say it: the values of repeat_last_n
// and dry_last_n that mean the whole text, and nothing at all, which turns the step off. 0 is the
// default, as in every field.
enum { QN_LAST_N_ALL = -1, QN_LAST_N_NONE = -2 };

// How to choose a token. All zero is greedy. Zero of a field is its default, mostly "off". Values
// are checked: one out of range, or NaN, is an error that names it. Arrays and strings are borrowed
// for the call, and must not change while the same pointers are given again. docs/sampling.md says
// what each step computes, and which random number is drawn where. Ties go to the lower id.
typedef struct qn_sample_opts {
    size_t size;
    float temperature;   // 0: the best token, which touches no randomness
    uint64_t seed;       // same prompt, seed and settings: same tokens
    uint32_t completion; // number of this completion among several of one prompt
    int32_t top_k;       // this many best tokens; 1 is greedy
    float top_p;         // the smallest set of top tokens with this total probability; 1: off
    float min_p;         // at least this share of the best token's probability
    float typical_p;     // the most typical tokens with this total probability; 1: off
    float top_n_sigma;   // at most this many standard deviations of the logits below the best
    // Drops all likely tokens except the least likely; threshold 0: 0.1
    float xtc_probability, xtc_threshold;
    float dynatemp_range, dynatemp_exponent;   // temperature -+ range by entropy; exponent 0: 1
    float repeat_penalty;                      // divides (or multiplies) logits; 1: off
    float frequency_penalty, presence_penalty; // subtracted, for tokens of the answer
    int32_t repeat_last_n;          // tokens that repeat_penalty looks back, or QN_LAST_N_*; 0: 64
    float dry_multiplier, dry_base; // for tokens that go on with a repetition; base 0: 1.75
    int32_t dry_allowed_length, dry_last_n; // 0: 2; 0: all, as QN_LAST_N_ALL
    const char *const *dry_breakers;        // no repetition reaches across; NULL: \n : " *
    size_t n_dry_breakers;
    int32_t mirostat;                 // 0: off; 2: mirostat 2 in place of the filters
    float mirostat_tau, mirostat_eta; // 0: 5; 0: 0.1
    const qn_bias *biases;
    size_t n_biases;
    const char *const *bans; // strings that must not appear in the answer
    size_t n_bans;
    const char *order; // names of steps with ';' between them; NULL: the default order
    uint64_t flags;    // QN_SAMPLE_*
} qn_sample_opts;
// repeat_penalty counts once for each occurrence of a token among the last, not once for each
// distinct token.
enum { QN_SAMPLE_REPEAT_EACH = 1 };
// Checks all that can be without a model: numbers, order, limits of the lists.
QN_API QN_MUST_CHECK qn_status qn_sample_check(const qn_sample_opts *opts, qn_err *err);
// The settings that come with the model: "general.sampling.*" of a GGUF file, or
// generation_config.json of a checkpoint (docs/sampling.md). All zero, greedy, where there are
// none; no call uses them unless they are given to it, but for answers in a conversation
// (qn_chat_opts). Borrows from the engine.
QN_API QN_MUST_CHECK qn_status qn_engine_sample_defaults(qn_sample_opts *out,
                                                         const qn_engine *engine, qn_err *err);

// --- choosing tokens from given logits ---

// A sampler for logits that come from anywhere: it remembers the tokens so far and chooses the next
// one exactly as sessions and answers do. One thread at a time.
typedef struct qn_sampler qn_sampler;

// For rows of n_vocab logits (0: as many as the tokenizer has tokens). opts NULL: greedy; they are
// copied. The tokenizer (borrowed) may be NULL: then banned strings are refused, DRY has no
// breakers, and every id is a token; else logits beyond its tokens are never chosen.
QN_API QN_MUST_CHECK qn_status qn_sampler_create(qn_sampler **out, const qn_tokenizer *tokenizer,
                                                 int64_t n_vocab, const qn_sample_opts *opts,
                                                 qn_err *err);
QN_API void qn_sampler_destroy(qn_sampler *sampler);
// Other settings from now on; after a failure the old ones stay.
QN_API QN_MUST_CHECK qn_status qn_sampler_set(qn_sampler *sampler, const qn_sample_opts *opts,
                                              qn_err *err);
// The next token by n = n_vocab logits, which are numbers or -INFINITY (never chosen). Nothing is
// remembered: the same call chooses the same token.
QN_API QN_MUST_CHECK qn_status qn_sampler_choose(int32_t *token, qn_sampler *sampler,
                                                 const float *logits, size_t n, qn_err *err);
// Appends tokens: of the prompt (before any of the answer), or of the answer. Mirostat moves on by
// a token that was chosen just before; others leave it alone.
QN_API QN_MUST_CHECK qn_status qn_sampler_accept_prompt(qn_sampler *sampler, const int32_t *ids,
                                                        size_t n, qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_sampler_accept(qn_sampler *sampler, int32_t token, qn_err *err);
// Forgets all tokens and what mirostat knows; the settings stay.
QN_API QN_MUST_CHECK qn_status qn_sampler_reset(qn_sampler *sampler, qn_err *err);
// The state, settings aside, as bytes and back: tokens, which of them are prompt, mirostat's
// estimate. *data is owned (qn_free). Bytes of another vocabulary, or damaged ones, are QN_FORMAT
// and change nothing. To copy a state, load it into another sampler.
QN_API QN_MUST_CHECK qn_status qn_sampler_save(void **data, size_t *size, const qn_sampler *sampler,
                                               qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_sampler_load(qn_sampler *sampler, const void *data, size_t size,
                                               qn_err *err);

// One kernel call of a step, for `trace`. Times are nanoseconds since the session began.
typedef struct qn_trace_event {
    size_t size;
    const char *kernel, *op; // constant as long as the program runs
    int32_t layer;           // -1: outside the layers
    int64_t step, rows;      // number of the step; rows of the step
    int64_t begin, end;
    int64_t bytes; // of weights and state that the call read at least
} qn_trace_event;
typedef void qn_trace_fn(void *arg, const qn_trace_event *event);

typedef struct qn_session_opts {
    size_t size;
    int64_t context; // max tokens of prompt and answer together; 0: the model's own limit
    bool shrink;     // take a shorter context where memory is short, instead of failing
    int64_t chunk;   // tokens per step while a prompt is read; 0: the default. Never more than the
                     // profile's compile_seq_cap. Changes no result.
    int64_t kept; // max bytes of state kept of earlier prompts, for prompts with a common prefix;
                  // 0: about one context; -1: none. Changes no result.
    // Max sessions, forks and snapshots that share this state; 0: 32. Address space is reserved
    // for what half of the free memory holds, at least for one context; memory is taken as they
    // grow.
    int64_t sessions;
    bool logits; // steps leave their logits (qn_session_logits), also where a choice needs only the
                 // best of them. Changes no result.
    // A session whose state and kept prompts this one shares, as its forks do (same thread, same
    // context, chunk and so on, which are then ignored here); NULL: none
    qn_session *share;
    // Called between the steps of a prompt with the tokens that are computed and those that are
    // wanted; false stops (status QN_STOPPED): what is computed stays. NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    qn_trace_fn *trace; // called after each step, once for each call; NULL: none
    void *trace_arg;
    // Ends calls on this session and its forks: steps, prefill and so on with QN_STOPPED, where
    // what is computed stays; answers with QN_REASON_STOPPED. NULL: none
    const qn_stop_flag *stop;
    int64_t adapter; // set of adapters (qn_adapter); of this session, also where it shares
    // Not 0: steps leave the residual stream of their rows (qn_session_read_hidden), which takes a
    // little time and memory. Not together with a prediction head; with `share`, that session must
    // have it too. Changes no result.
    int64_t hidden;
} qn_session_opts;

// Fails with QN_MEMORY, and the plan's numbers, where the context cannot fit in free memory.
QN_API QN_MUST_CHECK qn_status qn_session_create(qn_session **out, const qn_engine *engine,
                                                 const qn_session_opts *opts, qn_err *err);
QN_API void qn_session_destroy(qn_session *session);
// Max tokens that the session holds.
QN_API int64_t qn_session_context(const qn_session *session);
// Prompt and generated tokens. Borrowed until the next call on this session.
QN_API const int32_t *qn_session_tokens(const qn_session *session, size_t *n);
// Tokens whose KV cache and state are computed.
QN_API size_t qn_session_cached(const qn_session *session);

// Sampling state is part of the session: which tokens are prompt and which are answer (penalties
// and bans look at the answer), the position in the random stream, mirostat's estimate. Forks
// and snapshots have it, qn_session_set_prompt and qn_session_prefill reset it, and generations go
// on from it: two answers of 10 tokens are one of 20. Tokens that are fed or committed after the
// prompt count as answer.

// Uses another set of adapters from now on (0: the first, -1: none). What is cached was computed
// with the set before, and is computed again. Forks and snapshots have the set of their session.
QN_API QN_MUST_CHECK qn_status qn_session_set_adapter(qn_session *session, int64_t adapter,
                                                      qn_err *err);
// Replaces the token history and forgets state; runs nothing.
QN_API QN_MUST_CHECK qn_status qn_session_set_prompt(qn_session *session, const int32_t *ids,
                                                     size_t n, qn_err *err);
// The same with images. The ids have image tokens where an image is, as many neighbouring ones as
// it has rows (qn_engine_expand_images writes them), for the images in order; another number is
// QN_ARGUMENT with both numbers. Images are encoded here, unless their rows are still kept: an
// engine keeps the last 64, at most 256 MiB, by what is seen. Context shift is refused with images.
// The session's stop flag ends the encoding (QN_STOPPED); more memory than is free is QN_MEMORY.
QN_API QN_MUST_CHECK qn_status qn_session_set_prompt_images(qn_session *session, const int32_t *ids,
                                                            size_t n, const qn_image *const *images,
                                                            size_t n_images, qn_err *err);
// The same with rows and rope positions that are given (NULL: none).
QN_API QN_MUST_CHECK qn_status qn_session_set_prompt_given(qn_session *session, const int32_t *ids,
                                                           size_t n, const qn_given *given,
                                                           qn_err *err);
// A later prompt will probably begin with the first n tokens of this one (all but the
// generation prompt): what belongs to them is kept when they are computed. n 0: nothing special.
QN_API QN_MUST_CHECK qn_status qn_session_mark(qn_session *session, size_t n, qn_err *err);
// Computes what is not yet in the cache (first the whole prompt, then one token a call), samples a
// token and appends it: afterwards one token fewer is cached than the history has. An empty history
// is an error. Without opts: greedy.
QN_API QN_MUST_CHECK qn_status qn_session_step(int32_t *token, qn_session *session,
                                               const qn_sample_opts *opts, qn_err *err);
// The same without the cache: recomputes the whole history. Same result, slowly.
QN_API QN_MUST_CHECK qn_status qn_session_step_naive(int32_t *token, qn_session *session,
                                                     const qn_sample_opts *opts, qn_err *err);
// Replaces the history by `ids`, computes them, and gives the logits after the last, borrowed until
// the next call on this session; samples nothing. Afterwards the whole history is cached. With NULL
// and 0, the history that is there is computed, such as a prompt with images or given rows.
QN_API QN_MUST_CHECK qn_status qn_session_prefill(const float **logits, qn_session *session,
                                                  const int32_t *ids, size_t n, qn_err *err);
// Appends a token, computes it, and gives the logits after it. The whole history must be cached:
// after qn_session_prefill or qn_session_feed.
QN_API QN_MUST_CHECK qn_status qn_session_feed(const float **logits, qn_session *session,
                                               int32_t token, qn_err *err);
// Appends n tokens and gives the logits after each of them (out->n_rows is n): in one step where n
// is at most QN_MAX_FED (and the session's chunk), else in several. Truncating to any token of the
// last step, QN_MAX_FED of them or all n, costs nothing, with recurrent layers too, so that a
// caller can verify drafts of its own. After a failure none is there.
QN_API QN_MUST_CHECK qn_status qn_session_feed_all(qn_logits *out, qn_session *session,
                                                   const int32_t *ids, size_t n, qn_err *err);
enum { QN_MAX_FED = 32 };
// The logits of the token after `token`, by the prediction head of an engine that was opened with
// it, if `token` came next; borrowed until the next call on this session, which is unchanged. The
// whole history must be cached.
QN_API QN_MUST_CHECK qn_status qn_session_predict(const float **logits, qn_session *session,
                                                  int32_t token, qn_err *err);
// Appends tokens and computes them, without logits.
QN_API QN_MUST_CHECK qn_status qn_session_commit(qn_session *session, const int32_t *ids, size_t n,
                                                 qn_err *err);
// The logits that the last prefill or feed left, or the last step if it had all of them: always
// with qn_session_opts.logits, else where choosing a token took more than the best. NULL if there
// are none.
QN_API const float *qn_session_logits(const qn_session *session);

// Forgets the tokens from `n` on, and their state; mirostat begins again. What is left of a prompt
// is prompt. Models with full attention alone go on at once. Where a recurrent state or a window
// has moved on, it is found again at the nearest place that was kept (qn_session_opts.kept): the
// end of a prompt, the last chunk before it, or every 2048 tokens; the next step computes from
// there. Within an answer that is all that is left of the answer, not the prompt; where nothing is
// kept (-1), it is everything.
QN_API QN_MUST_CHECK qn_status qn_session_truncate(qn_session *session, size_t n, qn_err *err);
// Another session with the same history and state, which it shares in memory: a session and its
// forks are used by one thread at a time, and each must be destroyed separately. There may be
// qn_session_opts.sessions sessions and snapshots of one family at a time.
QN_API QN_MUST_CHECK qn_status qn_session_fork(qn_session **out, qn_session *session, qn_err *err);
// History and state of a session at one moment, sampling state included. Used on the thread of its
// session, and destroyed before it.
typedef struct qn_snapshot qn_snapshot;
QN_API QN_MUST_CHECK qn_status qn_session_checkpoint(qn_snapshot **out, qn_session *session,
                                                     qn_err *err);
// Puts it back, into the session it came from or a fork of it. May be done many times.
QN_API QN_MUST_CHECK qn_status qn_session_restore(qn_session *session, const qn_snapshot *snapshot,
                                                  qn_err *err);
QN_API void qn_snapshot_destroy(qn_snapshot *snapshot);

// What a session did so far.
typedef struct qn_session_counts {
    size_t size;
    int64_t steps, rows;            // steps run; tokens computed in them
    int64_t reused;                 // tokens reused from the prefix cache
    int64_t plan_hits, plan_misses; // steps that found a plan of their size, or made one
    int64_t evictions;              // kept chunks that were dropped for room
} qn_session_counts;
QN_API QN_MUST_CHECK qn_status qn_session_get_counts(qn_session_counts *out,
                                                     const qn_session *session, qn_err *err);

// --- state of a session as bytes -----------------------------------------------------------------

// Takes n bytes; false: they could not be written.
typedef bool qn_write_fn(void *arg, const void *data, size_t n);

// Writes a session: history, sampling state, KV cache and recurrent state, images, logits if there
// are any. The bytes (docs/state.md) are the same on every device, with any number of threads, and
// however the state was computed. `fn` must not be NULL; where it fails, the call does (QN_IO). A
// session whose prompt had given rows or positions is QN_UNSUPPORTED.
QN_API QN_MUST_CHECK qn_status qn_session_save(qn_session *session, qn_write_fn *fn, void *arg,
                                               qn_err *err);
// Replaces what a session has by what was saved: it then goes on with the same bits, on whatever
// device. The session must have room for it, and be of the same model (recognised by its keys, its
// tensors and some of their values), type of KV cache, numerics, prediction head and set of
// adapters: else QN_ARGUMENT names both values. Damage anywhere is QN_FORMAT. `fn` (not NULL) reads
// `size` bytes in all, of which the larger part is read twice. After an error the session is as
// before; only where the second reading fails or differs from the first, its history is computed
// again.
QN_API QN_MUST_CHECK qn_status qn_session_load(qn_session *session, qn_read_fn *fn, void *arg,
                                               int64_t size, qn_err *err);
// The same in memory; *data is owned (qn_free).
QN_API QN_MUST_CHECK qn_status qn_session_save_bytes(void **data, size_t *size, qn_session *session,
                                                     qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_session_load_bytes(qn_session *session, const void *data,
                                                     size_t size, qn_err *err);

// --- looking into a session ----------------------------------------------------------------------

// What a layer keeps of the tokens that are cached.
typedef struct qn_layer_info {
    size_t size;
    int64_t n_heads, key_size, value_size; // of its KV cache; n_heads 0: it has none
    int64_t first; // keys and values of positions first ... qn_session_cached - 1 are there: all,
                   // or those that its window can still see, from a multiple of 64 on
    int64_t n_states; // recurrent states; 0: it has none
} qn_layer_info;

// Layers are counted from 0; the number after the last is the prediction head of an engine that was
// opened with it.
QN_API QN_MUST_CHECK qn_status qn_session_layer_info(qn_layer_info *out, const qn_session *session,
                                                     int64_t layer, qn_err *err);
// Keys (n, key_size), after rope, and values (n, value_size) of one head, of positions first ...
// first + n - 1, as the KV cache rounds them, not rotated. One of both pointers may be NULL.
QN_API QN_MUST_CHECK qn_status qn_session_read_kv(float *keys, float *values, qn_session *session,
                                                  int64_t layer, int64_t head, int64_t first,
                                                  int64_t n, qn_err *err);

typedef struct qn_state_info {
    size_t size;
    const char *name; // borrowed: "conv.3", the last rows before a convolution (1, rows, channels);
                      // "delta.3", the matrices of a delta rule (heads, key size, value size)
    int64_t dims[3];
} qn_state_info;
// State i of a layer, below qn_layer_info.n_states; and its floats after the last cached token.
QN_API QN_MUST_CHECK qn_status qn_session_state_info(qn_state_info *out, const qn_session *session,
                                                     int64_t layer, int64_t i, qn_err *err);
QN_API QN_MUST_CHECK qn_status qn_session_read_state(float *to, qn_session *session, int64_t layer,
                                                     int64_t i, qn_err *err);

// The rows of the last step of a session that was created with qn_session_opts.hidden: the last
// chunk of a prompt, or one token. n_rows 0: there are none, also where another session of the same
// state has taken a step since.
typedef struct qn_hidden_info {
    size_t size;
    int64_t first, n_rows; // positions
    int64_t n_hidden;      // as in qn_logits: embedding, after each layer; the last after the final
                           // norm
    int64_t width;
} qn_hidden_info;
QN_API QN_MUST_CHECK qn_status qn_session_hidden_info(qn_hidden_info *out,
                                                      const qn_session *session, qn_err *err);
// Row i < n_hidden of the residual stream at positions first ... first + n - 1 of these: to (n,
// width).
QN_API QN_MUST_CHECK qn_status qn_session_read_hidden(float *to, const qn_session *session,
                                                      int64_t i, int64_t first, int64_t n,
                                                      qn_err *err);

// --- structured output ---------------------------------------------------------------------------

// What an answer may look like. Constant; threads may share one.
typedef struct qn_grammar qn_grammar;
typedef enum qn_grammar_kind {
    QN_GRAMMAR_JSON,   // any JSON object; the text is empty
    QN_GRAMMAR_SCHEMA, // JSON Schema
    QN_GRAMMAR_REGEX,  // a regular expression that the whole answer matches
    QN_GRAMMAR_GBNF    // rules in the notation of GBNF files
} qn_grammar_kind;

// How a JSON Schema is read, and limits of all kinds.
typedef struct qn_grammar_opts {
    size_t size;
    // What has no grammar (unknown formats and keywords, uniqueItems of any strings, patterns with
    // references to groups, references to other files), and multipleOf, minProperties and
    // patternProperties beyond their limits are left out, with a warning to `log` that names the
    // place, where they are refused otherwise. Answers may then be invalid.
    bool lenient;
    // Objects that list `properties` and say nothing of others have no others. A wrapper with
    // "strict": true in the text means the same.
    bool closed;
    qn_log_fn *log; // of warnings; NULL: silent
    void *log_arg;
    // Hostile texts can take seconds. The flag, set while a grammar is made, makes that QN_STOPPED;
    // what needs more than max_steps (0, and at most: 40 million, of some 50 ns each) is QN_LIMIT,
    // and with fewer than that nothing is left out for being too large.
    const qn_stop_flag *stop; // NULL: none
    int64_t max_steps;
    // Ambiguous grammars can take long for a token, too: one that needs more steps (0, and at most:
    // 20 million, of some 20 ns each) ends its answer with QN_LIMIT (QN_REASON_FAILED).
    int64_t max_token_steps;
} qn_grammar_opts;

// docs/structure.md lists what is supported. What cannot be honoured is refused with its place, or
// left out as `lenient` says; nothing is silently ignored. The tokenizer must outlive the
// grammar. Needs less than 256 KiB of stack, whatever the text.
QN_API QN_MUST_CHECK qn_status qn_grammar_create(qn_grammar **out, const qn_tokenizer *tokenizer,
                                                 qn_grammar_kind kind, const char *text,
                                                 size_t size, const qn_grammar_opts *opts,
                                                 qn_err *err);
// The same for the tokenizer of another grammar, and much faster: what is known of the vocabulary
// is shared. The other may be destroyed first.
QN_API QN_MUST_CHECK qn_status qn_grammar_create_like(qn_grammar **out, const qn_grammar *other,
                                                      qn_grammar_kind kind, const char *text,
                                                      size_t size, const qn_grammar_opts *opts,
                                                      qn_err *err);
QN_API void qn_grammar_destroy(qn_grammar *grammar);

// --- generation ----------------------------------------------------------------------------------
//
// The loop from a prompt to an answer: choosing, stopping, speculating. docs/generation.md says
// more.

// Why an answer ended.
typedef enum qn_reason {
    QN_REASON_NONE,     // it goes on
    QN_REASON_END,      // the model ended it, or the grammar has nothing to add
    QN_REASON_STOP,     // a stop string or a stop token
    QN_REASON_LENGTH,   // max_tokens, or the context is full
    QN_REASON_CALLER,   // the callback returned false
    QN_REASON_DEADLINE, // its deadline passed (qn_row_opts.deadline_ms)
    QN_REASON_FAILED,   // an error that is this row's alone; others go on
    QN_REASON_STOPPED   // its stop flag, or that of its session, was set
} qn_reason;
// "end", "stop", ...; never NULL.
QN_API const char *qn_reason_name(qn_reason reason);

enum { QN_MTP_FAST = 32768 };

// What the next token of an answer will be chosen by; borrowed for the call.
typedef struct qn_next_logits {
    size_t size;
    uint64_t id; // as in qn_event
    size_t row;
    // (n_vocab) a copy of what the model gave, to be changed at will: numbers, or -INFINITY for
    // tokens that must not be chosen. Bans, biases, the grammar and all sampling steps come later;
    // log-probabilities stay those of the model.
    float *logits;
    int64_t n_vocab;
    const int32_t *tokens; // (n_tokens) of prompt and answer so far
    size_t n_tokens, n_prompt;
} qn_next_logits;
// Called once before each choice, in order, on the thread that computes: with speculative decoding
// exactly as without. Drafts are made without it, so that fewer of them are accepted the more it
// changes. False ends the row (QN_REASON_CALLER).
typedef bool qn_logits_fn(void *arg, const qn_next_logits *next);
// Writes up to `max` (at most QN_MAX_DRAFT) tokens that may follow the n tokens of prompt and
// answer to `to`, and returns how many: 0 where it has no idea. Any tokens will do: wrong ones cost
// only time, and an id outside the vocabulary ends the draft. `max` is what pays by the time that
// drafts take and how many were accepted (see draft_min); where none pays, it is rarely called.
typedef int32_t qn_draft_fn(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n);

// Lists and texts are copied; a grammar must outlive the answer, or the call that makes it.
typedef struct qn_generate_opts {
    size_t size;
    const qn_sample_opts *sample; // NULL: greedy
    // Before that many tokens the answer cannot end: end and stop tokens are not chosen, stop
    // strings are text like any other.
    int64_t min_tokens;
    int64_t max_tokens; // 0: as many as the context holds; -1: none (the prompt's logits alone)
    bool ignore_end;    // end tokens are never chosen
    const char *const *stops; // (n_stops) strings that end the answer; they are not part of it
    size_t n_stops;
    const int32_t *stop_tokens; // (n_stop_tokens) besides those of the model's file
    size_t n_stop_tokens;
    const qn_grammar *grammar; // borrowed; NULL: any text
    bool logprobs;             // events carry the log-probability of their token
    int32_t n_top;             // and of that many best tokens, at most QN_MAX_TOP
    bool prompt_logprobs;      // events for the prompt's tokens as well, from the second on
    // Speculative decoding changes no token, only the time. `draft` is a session of a model with
    // the same vocabulary: qn_generate uses it, the rows of a batch use sessions of their own that
    // share its state, which nobody else may use at the same time; `lookup` drafts what followed
    // the same n-gram before; `mtp` drafts with the prediction head of an engine that was opened
    // with it, and `mtp_fast` only tokens below QN_MTP_FAST, which takes less time. Of several, the
    // first that has a draft is taken: draft_fn, lookup, mtp, draft.
    qn_session *draft;
    bool lookup, mtp, mtp_fast;
    int32_t draft_max; // max tokens drafted at once; 0: 8; at most QN_MAX_DRAFT
    int32_t draft_min; // min, where anything can be drafted; 0: none if it does not pay
    // A full context: false ends the answer (QN_REASON_LENGTH). True forgets the older half of what
    // comes after the first `keep` tokens, and computes the rest again; models with recurrent
    // layers refuse.
    bool shift;
    bool naive; // recompute the whole history for each token: same result, slowly
    int64_t keep;
    // Ends the answer (QN_REASON_STOPPED) before its next step; NULL: none
    const qn_stop_flag *stop;
    // Sees the logits before each choice, and may change them; NULL: none
    qn_logits_fn *logits_fn;
    void *logits_arg;
    // Drafts for speculative decoding, asked before all other sources; NULL: none
    qn_draft_fn *draft_fn;
    void *draft_arg;
    uint64_t flags; // QN_GENERATE_*
} qn_generate_opts;
// The end or stop token that ends the answer is its last token: it comes as an event with its text
// ("<|im_end|>"), is part of result, text and history, and does not end anything else. Not in
// conversations (qn_chat_answer, qn_chat_turn_create), whose messages end without it.
enum { QN_GENERATE_SHOW_END = 1 };
enum { QN_MAX_TOP = 256, QN_MAX_DRAFT = 16 };

typedef struct qn_token_logprob {
    int32_t token;
    float logprob; // natural logarithm, of the model's own logits (before any sampling option)
} qn_token_logprob;

// One token, in order; pointers are borrowed for the call.
typedef struct qn_event {
    size_t size;
    uint64_t id;                 // of the row, as qn_batch_add gave it; 0 in other calls
    size_t row;                  // number of the result (qn_generate_batch), or of the completion
    int64_t position;            // of the token, counted from the beginning of the prompt
    int32_t token;               // -1: none, the row has ended, for `reason`
    bool is_prompt;              // a token of the prompt (prompt_logprobs)
    bool is_drafted;             // it was drafted, and accepted
    const char *text;            // what can be shown now: whole characters that cannot begin a stop
    size_t text_size;            // bytes of it; text may lag behind the tokens, and come in chunks
    float logprob;               // 0 where not asked for
    const qn_token_logprob *top; // (n_top) best first
    size_t n_top;
    qn_reason reason;               // in the last event of a row; NONE in all others
    const qn_err *err;              // of a row that failed; NULL in all others
    const struct qn_result *result; // in the last event: what the row did; NULL in all others
} qn_event;
// False ends the row (QN_REASON_CALLER), which gets no further events.
typedef bool qn_event_fn(void *arg, const qn_event *event);

typedef struct qn_result {
    size_t size;
    qn_reason reason;
    int32_t stop_token; // that ended the answer, and is not part of it; -1: none
    int64_t stop;       // number of the stop string that did; -1: none
    int32_t *tokens;    // (n_tokens) of the answer; with a stop string, up to the one that ended it
    size_t n_tokens;
    char *text; // of the answer, NUL-terminated, `text_size` bytes long
    size_t text_size;
    int64_t n_prompt, n_reused;    // tokens of the prompt; of these, reused from the prefix cache
    int64_t n_drafted, n_accepted; // tokens drafted; of these, accepted
    int64_t n_steps, n_shifts;     // steps of the model after prefill; shifts of context
    int64_t n_preemptions; // times that its state was dropped for others, and computed again
    qn_status status;      // of a row that failed: why; QN_OK in all others
    char *message;         // the same in words, NUL-terminated; NULL in all others
} qn_result;
// Releases tokens, text and message of a result that was handed over.
QN_API void qn_result_deinit(qn_result *result);

// The answer to a session's history, or the rest of one: tokens that the session has generated
// since its prompt was set count as answer for sampling. *result (may be NULL) is to be released by
// qn_result_deinit. An answer that fails is an error of the call.
QN_API QN_MUST_CHECK qn_status qn_generate(qn_result *result, qn_session *session,
                                           const qn_generate_opts *opts, qn_event_fn *fn, void *arg,
                                           qn_err *err);

// How a row of a batch is answered.
typedef struct qn_row_opts {
    size_t size;
    const qn_generate_opts *generate; // NULL: the defaults
    // How many answers, at most QN_MAX_COMPLETIONS; 0: one. They are rows of their own, whose ids
    // follow each other, and read the prompt once; numbered from sample.completion on.
    uint32_t completions;
    size_t mark; // as qn_session_mark; 0: nothing special
    // The row ends (QN_REASON_DEADLINE) at the first step that begins this many milliseconds after
    // it was added; 0: never
    int64_t deadline_ms;
    const qn_image *const *images; // (n_images) of the prompt, as for qn_session_set_prompt_images
    size_t n_images;
    int64_t adapter;       // set of adapters (qn_adapter); 0: that of the session, or the first
    const qn_given *given; // rows and positions of the prompt; NULL: none
    // Called on the thread that steps while the prompt is read, until the first token of the answer
    // is chosen: first with the tokens that the prefix cache had, then after each step with those
    // that are computed so far, and with all of them. A row that is preempted meanwhile reads them
    // again. Of several completions the first one calls. False ends the row (QN_REASON_CALLER),
    // which gets no further events. NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
    uint64_t flags; // QN_ROW_*
} qn_row_opts;
// The row takes nothing from the prefix cache, and leaves nothing there.
enum { QN_ROW_UNCACHED = 1 };
enum { QN_MAX_COMPLETIONS = 65536 };

// Answers to many prompts, computed together; `results` are as many as all completions, those of
// one prompt side by side, each with its size set (they are all of one size) and to be released by
// qn_result_deinit. A prompt is read once, whatever its number of completions. Works in sessions of
// its own that share the state of `session` (and of the draft); rows that do not fit there wait
// for others to end. A row that fails (QN_REASON_FAILED) is a result like any other. qn_event.row
// is the number of the result. Prompt events come for a prompt's first completion alone.
QN_API QN_MUST_CHECK qn_status qn_generate_batch(qn_result *results, size_t n_results,
                                                 qn_session *session, const qn_prompt *prompts,
                                                 size_t n_prompts, qn_event_fn *fn, void *arg,
                                                 qn_err *err);

// --- answers in a conversation -------------------------------------------------------------------
//
// From a qn_chat to its next message. qn_chat_answer does it all in a session; servers, whose rows
// come and go in a batch, use the parts that it is made of:
//     qn_chat_turn_create -> qn_chat_turn_get_info -> qn_batch_add; in the row's callback
//     qn_chat_reply_feed, at its end qn_chat_reply_get_message -> qn_chat_add

// The prompt of an answer and the options of its row. Constant.
typedef struct qn_chat_turn qn_chat_turn;
// An answer while it comes: reasoning, text and calls. One thread at a time.
typedef struct qn_chat_reply qn_chat_reply;

typedef enum qn_chat_event_kind {
    QN_CHAT_BEGIN,     // the prompt is made, and set: `turn`; false ends with QN_STOPPED
    QN_CHAT_REASONING, // a chunk of reasoning
    QN_CHAT_TEXT,      // a chunk of the answer
    QN_CHAT_CALL,      // a call of the tool `name` begins
    QN_CHAT_ARGUMENTS  // a chunk of its arguments, which together are a JSON object
} qn_chat_event_kind;

// What an answer may do with the tools of its chat. What a model's calls look like is found by what
// its template makes of one; docs/chat.md lists the forms. Calls that are not QN_TOOLS_FREE are
// held to the tools: their names, and arguments that fit the schema in "parameters" (none: any
// object). Of two tools with one name the first counts.
typedef enum qn_tool_choice {
    QN_TOOLS_FREE, // whatever the model writes
    // The model may call tools: all is free until a call begins, and between calls. Where the form
    // of calls is not known, as FREE.
    QN_TOOLS_AUTO,
    QN_TOOLS_NONE, // no calls: the template is not told of the tools, and what looks like a call is
                   // text
    // After the reasoning the answer is at least one call. Where the form of calls is not known, in
    // that of Hermes.
    QN_TOOLS_REQUIRED
} qn_tool_choice;

struct qn_chat_turn_info;
// Borrowed for the call. A call that is held to the tools (qn_tool_choice) is told as it comes:
// CALL when its name is known, ARGUMENTS in chunks that together are a JSON object, equal to the
// message's up to spelling; if the answer ends in the middle of it, what was told stands, and in
// the message the unfinished call is part of the text, which is not told again. Any other call is
// told when it is complete, with its arguments in one chunk: before that it may turn out to be
// text.
typedef struct qn_chat_event {
    size_t size;
    qn_chat_event_kind kind;
    int32_t call;     // number of the call in this answer
    const char *text; // the chunk; of CALL: all of the call as the model wrote it, as far as it is
                      // known (nothing, where it is told as it comes)
    size_t text_size;
    const char *name;                     // of CALL and ARGUMENTS; NULL in all others
    const qn_event *token;                // what it came with; of BEGIN NULL
    const struct qn_chat_turn_info *turn; // of BEGIN
} qn_chat_event;
// False ends the answer (QN_REASON_CALLER); what there is of it is kept.
typedef bool qn_chat_fn(void *arg, const qn_chat_event *event);

// What an error of a turn is about.
typedef enum qn_chat_culprit {
    QN_CULPRIT_OTHER,       // the messages as the template takes them; or the caller's options
    QN_CULPRIT_TOOLS,       // a tool's name or schema
    QN_CULPRIT_TOOL_CHOICE, // tool_choice or tool_name, which do not go with the tools
    QN_CULPRIT_GRAMMAR,     // that of the answer, which does not go with the tools
    QN_CULPRIT_LENGTH       // the prompt has more tokens than the context, or than max_tokens
} qn_chat_culprit;

typedef struct qn_chat_opts {
    size_t size;
    const qn_chat_prompt_opts *prompt; // NULL: the defaults. n_skipped must be 0
    // NULL: the defaults. Where `sample` is NULL, the model's own settings are used
    // (qn_engine_sample_defaults); all zero is greedy. A grammar holds for what follows the
    // reasoning, which is free and must come to its end: where the prompt ends inside of it, or
    // the answer begins with it. With tools that may be called (AUTO) the answer follows it or is a
    // call; where calls begin without a tag, and where they are REQUIRED, there can be none.
    const qn_generate_opts *generate;
    // A prompt that does not fit in the context: the oldest turns are left out of it, as few as it
    // takes (a turn begins with a message of the role "user"; a leading system message stays). They
    // stay in the chat. Else, or if the last turn alone does not fit, QN_LIMIT with both numbers.
    bool leave_out;
    bool keeps_nothing;    // no later prompt will begin with this one: nothing is marked for it
    qn_event_fn *token_fn; // sees each event before its parts; false ends the answer. NULL: none
    void *token_arg;
    const qn_stop_flag *stop; // of rendering and of the answer, in place of theirs; NULL: none
    qn_tool_choice tool_choice;
    bool one_call; // not FREE: at most one call, which is then the end of the answer
    // What a tool's schema says that has no grammar is left out; else it is refused, with the tool
    // and the place. Tools with "strict": true, beside their name, are never read so.
    bool lenient_schemas;
    // Of REQUIRED: the one tool that may be called; NULL: any. A name that no tool has is
    // QN_ARGUMENT, with the names that there are.
    const char *tool_name;
    // Any grammar for the same tokenizer: the turn's own is made much faster from it, as by
    // qn_grammar_create_like. NULL: none.
    const qn_grammar *like;
    // Of the grammar of the tools, as in qn_grammar_opts; all tools together have them.
    int64_t max_grammar_steps, max_token_steps;
    // Not NULL: if the call fails, what the error is about.
    qn_chat_culprit *culprit;
} qn_chat_opts;

// Borrowed from the turn.
typedef struct qn_chat_turn_info {
    size_t size;
    const int32_t *ids; // (n) the prompt
    size_t n;
    // For qn_batch_add: images, mark, and `generate` with sampling settings and the grammar of the
    // answer, which the turn owns.
    const qn_row_opts *row;
    size_t n_turns, n_left_out; // turns of the messages; of these, left out
    const char *text;           // as the template rendered it
    size_t text_size;
    bool is_guarded;   // as in qn_chat_prompt
    int64_t n_skipped; // messages that were left out
} qn_chat_turn_info;

// Renders the prompt for a row of at most `context` tokens. What the options point to must outlive
// the turn; the chat need not.
QN_API QN_MUST_CHECK qn_status qn_chat_turn_create(qn_chat_turn **out, const qn_chat *chat,
                                                   const qn_template *chat_template,
                                                   const qn_engine *engine, int64_t context,
                                                   const qn_chat_opts *opts, qn_err *err);
QN_API void qn_chat_turn_destroy(qn_chat_turn *turn);
QN_API QN_MUST_CHECK qn_status qn_chat_turn_get_info(qn_chat_turn_info *out,
                                                     const qn_chat_turn *turn, qn_err *err);

// For one answer to a turn, which need not outlive it; each of several completions has its own.
// turn NULL: all that comes is text.
QN_API QN_MUST_CHECK qn_status qn_chat_reply_create(qn_chat_reply **out, const qn_chat_turn *turn,
                                                    qn_err *err);
QN_API void qn_chat_reply_destroy(qn_chat_reply *reply);
// The next event of the row, in order, the last one included. *goes_on (may be NULL): fn wants
// more.
QN_API QN_MUST_CHECK qn_status qn_chat_reply_feed(bool *goes_on, qn_chat_reply *reply,
                                                  const qn_event *event, qn_chat_fn *fn, void *arg,
                                                  qn_err *err);
// Ends a reply whose row ended without a last event (QN_REASON_CALLER): what was held back, to fn.
QN_API QN_MUST_CHECK qn_status qn_chat_reply_finish(qn_chat_reply *reply, qn_chat_fn *fn, void *arg,
                                                    qn_err *err);
// The answer so far as a message for qn_chat_add, borrowed until the reply changes.
QN_API QN_MUST_CHECK qn_status qn_chat_reply_get_message(qn_message *out,
                                                         const qn_chat_reply *reply, qn_err *err);
// Tokens of the answer so far that were reasoning, those of its tags included.
QN_API size_t qn_chat_reply_n_reasoning(const qn_chat_reply *reply);

// Answers the chat (its first opts->prompt->n_messages) in a session of the template's model: makes
// the prompt, computes what the session has not cached of it, generates, and tells fn while it
// comes; then the answer takes the place of all messages after those. *result (may be NULL) is to
// be released by qn_result_deinit. After a failure the chat is as it was.
QN_API QN_MUST_CHECK qn_status qn_chat_answer(qn_result *result, qn_chat *chat, qn_session *session,
                                              const qn_template *chat_template,
                                              const qn_chat_opts *opts, qn_chat_fn *fn, void *arg,
                                              qn_err *err);

// --- batches -------------------------------------------------------------------------------------
//
// Continuous batching. Rows (a prompt and its answer) come and go at any time; every step computes
// the next token of all that have read their prompt, and a part of the prompts that are still to be
// read. Each row gets exactly what it would get alone.
//
// One thread steps, and callbacks come on it. Rows are added and removed by any thread, also by a
// callback. Rows that do not fit the budget queue in FIFO order; when those that have begun outgrow
// it, the youngest is preempted and later resumes with the same tokens.

typedef struct qn_batch qn_batch;

typedef struct qn_batch_opts {
    size_t size;
    int64_t context; // max tokens of prompt and answer of one row; 0: the model's own limit
    int64_t chunk;   // max tokens that a step computes; 0: the default. Changes no result
    // Max tokens of prompts in a step that other rows take part in, so that long prompts do not
    // slow them down; 0: all that `chunk` leaves; QN_PROMPT_ROWS_AUTO: as many as make such a step
    // take about twice as long as without them, by the times of earlier steps. Several prompts
    // share them fairly. Changes no result.
    int64_t prompt_rows;
    int64_t rows; // max rows that are computed at a time; 0: 64
    // Max memory for the KV cache and recurrent state of all rows, and for what is kept of earlier
    // prompts; 0: what all rows can need, at most half of the free memory. Less than one row of
    // `context` tokens needs is an error (QN_MEMORY) with both numbers.
    int64_t bytes;
    int64_t kept;       // of it, the max that earlier prompts may take; 0: a quarter; -1: none
    qn_trace_fn *trace; // called after each step, once for each kernel call; NULL: none
    void *trace_arg;
    // Once it is set, the next step ends all rows (QN_REASON_STOPPED), also where steps fail. It
    // outlives the batch. NULL: none.
    const qn_stop_flag *stop;
} qn_batch_opts;
enum { QN_PROMPT_ROWS_AUTO = -1 };

// The engine must outlive the batch.
QN_API QN_MUST_CHECK qn_status qn_batch_create(qn_batch **out, const qn_engine *engine,
                                               const qn_batch_opts *opts, qn_err *err);
// Rows that are left get no callback. No other thread may be inside a call with the batch.
QN_API void qn_batch_destroy(qn_batch *batch);

// A row for a prompt, which is copied. Everything is checked here; what fails later ends the row
// with QN_REASON_FAILED. *id (may be NULL) is known before the first callback can come. Without fn,
// the row shows only in qn_batch_get_counts. A callback that returns false ends its row, and is not
// called again.
QN_API QN_MUST_CHECK qn_status qn_batch_add(uint64_t *id, qn_batch *batch, const int32_t *ids,
                                            size_t n, const qn_row_opts *opts, qn_event_fn *fn,
                                            void *arg, qn_err *err);
// Ends a row without a further callback: none runs after this returns. A callback in progress on
// another thread is waited for, so do not hold a lock it takes. False if there is no such row (any
// more).
QN_API bool qn_batch_remove(qn_batch *batch, uint64_t id);

// One step. *n_rows (may be NULL) are left, those that wait included; with none, nothing happens.
// Errors are those of the whole step: no row has ended by it, and the step can be tried again.
QN_API QN_MUST_CHECK qn_status qn_batch_step(size_t *n_rows, qn_batch *batch, qn_err *err);
// Waits until there is a row, for at most that many milliseconds (negative: no limit), or until
// qn_batch_wake. True if there is one. For the thread that steps.
QN_API bool qn_batch_wait(qn_batch *batch, int64_t timeout_ms);
// Ends a wait of another thread, or the next one.
QN_API void qn_batch_wake(qn_batch *batch);

// The state of a batch after its last step, and what it did so far.
typedef struct qn_batch_counts {
    size_t size;
    int64_t rows, queued;     // rows that are computed; that wait
    int64_t pages, pages_all; // of the KV cache: held by rows; in all
    int64_t slots, slots_all; // of recurrent state, the same; 0 for models without
    int64_t kept_bytes;       // held by earlier prompts alone
    int64_t steps, tokens;    // steps run; tokens computed in them, of prompts and answers
    int64_t hits, reused;     // prompts that had a prefix in the cache; tokens reused from it
    int64_t evictions;        // kept chunks that were dropped for room
    int64_t preemptions;
    int64_t added, ended, failed; // rows; `ended` includes failed and removed rows
    // What was planned: max rows at a time, and bytes of the KV cache and state of all of them with
    // what is kept of earlier prompts, once all of it is used.
    int64_t rows_all, bytes_all;
} qn_batch_counts;
// From any thread.
QN_API QN_MUST_CHECK qn_status qn_batch_get_counts(qn_batch_counts *out, qn_batch *batch,
                                                   qn_err *err);

// --- making model files --------------------------------------------------------------------------
//
// Every file is written under another name and takes its place when it is whole; a failure leaves
// what was there before.

typedef struct qn_quantize_opts {
    size_t size;
    const char *type;    // "Q4_K_M" and so on, letters of any case
    const char *imatrix; // path of an importance file made by qn_imatrix; NULL: none
    bool pure;           // the one type for every matrix, without the exceptions of the mixes
    int n_threads;       // 0: all that this process may use. Changes no byte of the result
    qn_log_fn *log;      // NULL: silent
    void *log_arg;
    qn_progress_fn *progress; // bytes of the input; NULL: none
    void *progress_arg;
} qn_quantize_opts;

// Writes the model with other numeric types (opts must not be NULL: it names one): matrices in the
// types of the mix that `type` names, everything else as it is. `in` is a GGUF file (any part of a
// split set) and not `out`, or a checkpoint, which is converted first (see qn_convert) and needs
// room for that on the disk. Weights that are not finite are refused.
QN_API QN_MUST_CHECK qn_status qn_quantize(const char *in, const char *out,
                                           const qn_quantize_opts *opts, qn_err *err);
// Fails with the list of all types if there is none of this name.
QN_API QN_MUST_CHECK qn_status qn_quantize_check_type(const char *type, qn_err *err);

typedef struct qn_imatrix_opts {
    size_t size;
    int64_t chunk;    // tokens that are read together; 0: 512, or the model's limit if lower
    int64_t n_chunks; // max chunks; 0: the whole text
    bool special;     // recognise special tokens written in the text
    int n_threads;    // 0: all that this process may use. Changes no byte of the result
    qn_log_fn *log;   // NULL: silent
    void *log_arg;
    // Tokens of the text; 0 of 0 while the model is loaded; NULL: none
    qn_progress_fn *progress;
    void *progress_arg;
} qn_imatrix_opts;

// Runs the model over a text file in chunks, collects how strongly each column of each weight is
// used, and writes that as an importance file. A trailing partial chunk is dropped unless it is
// the whole text.
QN_API QN_MUST_CHECK qn_status qn_imatrix(const char *model, const char *text, const char *out,
                                          const qn_imatrix_opts *opts, qn_err *err);

typedef struct qn_convert_opts {
    size_t size;
    const char *type; // "F32", "F16", "BF16", "Q8_0": of matrices; NULL: as the checkpoint has it
    qn_log_fn *log;   // NULL: silent
    void *log_arg;
    qn_progress_fn *progress; // bytes of tensors written; NULL: none
    void *progress_arg;
} qn_convert_opts;

// A Hugging Face checkpoint (a folder with config.json, safetensors and tokenizer files) as one
// GGUF file, readable by other GGUF programs. A vision tower goes to a second
// file, mmproj-NAME beside it. What GGUF cannot express is refused (QN_UNSUPPORTED), naming the
// value. Files appear whole or not at all; an existing file is replaced only if it is GGUF.
QN_API QN_MUST_CHECK qn_status qn_convert(const char *folder, const char *out_path,
                                          const qn_convert_opts *opts, qn_err *err);
// The name of the i-th type that a checkpoint is converted to; NULL after the last.
QN_API const char *qn_convert_type(size_t i);

typedef struct qn_synth_opts {
    size_t size;
    uint64_t seed;            // same shape, type and seed: same bytes
    int n_threads;            // 0: all that this process may use. Changes no byte of the result
    qn_progress_fn *progress; // bytes of tensors written; NULL: none
    void *progress_arg;
    // Mixture of experts: how unevenly tokens are routed. The router's row of the r-th expert, in
    // an order of each layer's own, is divided by r to this power, so that a few experts get most
    // tokens; and embeddings are 50 times as large, so that a token's own row decides where it is
    // routed. 0: neither.
    double routing_skew;
} qn_synth_opts;

// What a file of a shape and type holds.
typedef struct qn_synth_size {
    size_t size;
    int64_t n_tensors, n_parameters, tensor_bytes;
} qn_synth_size;

// Writes a model of random weights with the shape of a known one ("qwen3-0.6b") and a tokenizer of
// the right size, in the numeric types of a mix ("Q4_K_M"). It computes nonsense at the speed of
// the real one.
QN_API QN_MUST_CHECK qn_status qn_synth(const char *shape, const char *type, const char *out_path,
                                        const qn_synth_opts *opts, qn_err *err);
// The same without writing anything; unknown shapes and types fail with the list of known ones.
QN_API QN_MUST_CHECK qn_status qn_synth_measure(qn_synth_size *out, const char *shape,
                                                const char *type, qn_err *err);
// The i-th shape; NULL after the last.
QN_API const char *qn_synth_shape_name(size_t i);

#ifdef __cplusplus
}
#endif

#endif
