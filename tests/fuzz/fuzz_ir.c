// Any text as a graph. What is accepted prints to text that reads back as the same text, and has a
// picture.
#include "ir/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_graph(const qn_graph *graph) {
    qn_err err = {0};
    qn_buf first = {0}, second = {0};
    qn_graph back = {0};
    qn_graph_print(&first, graph);
    if (qn_graph_parse(&back, first.data, first.size, &err) != QN_OK) {
        fprintf(stderr, "printed, but: %s\n%s", err.message, first.data);
        abort();
    }
    qn_graph_print(&second, &back);
    if (first.size != second.size || memcmp(first.data, second.data, first.size) != 0) abort();
    qn_buf_clear(&first);
    qn_graph_svg(&first, graph);
    if (first.failed || second.failed) abort();
    qn_buf_deinit(&first);
    qn_buf_deinit(&second);
    qn_graph_deinit(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_err err = {0};
    qn_graph graph = {0};
    if (qn_graph_parse(&graph, text, size, &err) == QN_OK) {
        if (graph.arena.bytes > 16 * size + (1 << 20)) abort();
        check_graph(&graph);
    } else if (graph.name || !err.message[0]) {
        abort();
    }
    qn_graph_deinit(&graph);
    free(text);
    return 0;
}
