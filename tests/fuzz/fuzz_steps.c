// Any file of steps, from the file to the logits: run or refused.
//
// The first bytes of a recorded file are fixed, so that what follows is reached: the input is what
// comes after the sizes, unless it begins with 0xff.
#include "fuzz_cache.h"

#include "runtime/record.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 16 + sizeof(qn_record_head) };

static struct {
    char path[160];
    unsigned char head[HEAD];
    qn_engine *engine;
} steps;

static void close_engine(void) { qn_engine_close(steps.engine); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_make();
    snprintf(steps.path, sizeof steps.path, "%s/steps", fuzz.folder);
    steps.engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    atexit(close_engine);
    const qn_hparams *hp = steps.engine->model->hparams;
    const qn_record_head head = {.vocab = hp->vocab,
                                 .layers = hp->layers,
                                 .width = hp->width,
                                 .context = hp->context < 200 ? hp->context : 200,
                                 .rows = 16,
                                 .outs = 4,
                                 .segs = 4,
                                 .n_seqs = 4};
    memcpy(steps.head, "quern steps 1\n", 14);
    memcpy(steps.head + 16, &head, sizeof head);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const size_t head = size && data[0] == 0xff ? 0 : HEAD;
    unsigned char *file = malloc(head + size + 1);
    qn_logits got = QN_INIT(qn_logits);
    qn_err err = {0};
    CHECK(file);
    memcpy(file, steps.head, head);
    if (size) memcpy(file + head, data + (head == 0), size - (head == 0));
    fuzz_save(steps.path, file, head + size - (size && head == 0));
    free(file);
    const qn_status status = qn_engine_replay(&got, steps.engine, steps.path, NULL, &err);
    CHECK(status == QN_OK || err.message[0]);
    qn_logits_deinit(&got);
    return 0;
}
