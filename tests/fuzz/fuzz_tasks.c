// Any text as a file of tasks, and its first line as the answer to all of them.
#include "cli/eval.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_task(const char *line, size_t size, const char *answer) {
    qn_eval_task task = {0};
    qn_err err = {0};
    bool is_right = false, again = false;
    if (qn_task_parse(&task, line, size, "tasks", 1, &err)) {
        if (!err.message[0] || task.json) abort();
        return;
    }
    const qn_status status = qn_answer_check(&is_right, task.checker, task.expected, answer, &err);
    if (status && !err.message[0]) abort();
    if (!status &&
        (qn_answer_check(&again, task.checker, task.expected, answer, &err) || again != is_right))
        abort();
    json_decref(task.json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *end = text + size;
    char *answer = NULL;
    for (const char *line = text; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const size_t n = (size_t)((newline ? newline : end) - line);
        char *copy = malloc(n + 1); // with one byte more for the answer
        if (!copy) abort();
        memcpy(copy, line, n);
        copy[n] = 0;
        if (!answer) {
            answer = copy;
        } else {
            check_task(copy, n, answer);
            free(copy);
        }
        line += n + 1;
    }
    free(answer);
    return 0;
}
