#include "gen/grammar/regex_rules.h"

#include "gen/grammar/json_rules.h"
#include "gen/grammar/grammar_int.h"

typedef struct lowering {
    qn_gr_ast *ast;
    qn_gr_regex_form form;
    int32_t around;  // any text; EMPTY when the whole must match
    bool needs_look; // something depends on the text around it
} lowering;

// Where in the whole text a node is: a choice at an end takes what is around into its branches,
// for each of them may be anchored or not.
typedef struct ends {
    bool start, end;
} ends;

static int32_t lower_choice(lowering *low, const qn_gr_regex_node *node, ends at);

static int32_t lower_item(lowering *low, const qn_gr_regex_node *node) {
    switch (node->kind) {
    case QN_REGEX_CLASS:
        return low->form.in_json ? qn_gr_json_codes(low->ast, node->ranges, node->n_ranges)
                                 : qn_gr_codes(low->ast, node->ranges, node->n_ranges);
    case QN_REGEX_REP:
        return qn_gr_rep(low->ast, lower_item(low, node->first), node->min, node->max);
    case QN_REGEX_ALT:
        return lower_choice(low, node, (ends){false, false});
    default: // an anchor inside, look-around
        low->needs_look = true;
        return QN_AST_NEVER;
    }
}

static int32_t lower_sequence(lowering *low, const qn_gr_regex_node *sequence, ends at) {
    const qn_gr_regex_node *first = sequence->first, *last = sequence->last;
    bool free_start = at.start, free_end = at.end; // something else may be there
    for (; at.start && first && first->kind == QN_REGEX_START; first = first->next)
        free_start = false;
    for (; at.end && last && last->kind == QN_REGEX_END; last = last->previous) free_end = false;
    if (!first || !last || last->next == first) // nothing between the anchors
        return free_start || free_end ? low->around : QN_AST_EMPTY;
    int32_t node = free_end && last->kind != QN_REGEX_ALT ? low->around : QN_AST_EMPTY;
    for (const qn_gr_regex_node *item = last;; item = item->previous) {
        const ends here = {free_start && item == first, free_end && item == last};
        const int32_t made =
            item->kind == QN_REGEX_ALT ? lower_choice(low, item, here) : lower_item(low, item);
        node = qn_gr_seq(low->ast, made, node);
        if (item == first) break;
    }
    if (free_start && first->kind != QN_REGEX_ALT) node = qn_gr_seq(low->ast, low->around, node);
    return node;
}

static int32_t lower_choice(lowering *low, const qn_gr_regex_node *node, ends at) {
    int32_t choice = QN_AST_NEVER;
    for (const qn_gr_regex_node *branch = node->last; branch && !low->needs_look;
         branch = branch->previous)
        choice = qn_gr_alt(low->ast, lower_sequence(low, branch, at), choice);
    return choice;
}

qn_status qn_gr_regex_lower(int32_t *out, qn_gr_ast *ast, const qn_gr_regex_node *tree,
                            qn_gr_regex_form form, qn_err *err) {
    lowering low = {.ast = ast, .form = form, .around = QN_AST_EMPTY};
    if (form.around >= 0) low.around = qn_gr_rep(ast, form.around, 0, QN_AST_MANY);
    *out = lower_choice(&low, tree, (ends){true, true});
    return low.needs_look ? qn_gr_regex_lower_look(out, ast, tree, form, err) : QN_OK;
}

bool qn_gr_regex_take_count(qn_gr_regex_node *tree, uint32_t *min, uint32_t *max) {
    if (tree->first != tree->last) return false;
    const qn_gr_regex_node *start = tree->first->first;
    if (!start || start->kind != QN_REGEX_START || !start->next || !start->next->next) return false;
    qn_gr_regex_node *loop = start->next;
    if (loop->kind != QN_REGEX_REP || loop->first->kind != QN_REGEX_CLASS) return false;
    if (loop->next->kind != QN_REGEX_END || loop->next->next) return false;
    *min = loop->min;
    *max = loop->max;
    loop->min = 0;
    loop->max = QN_AST_MANY;
    return true;
}

// The column of the first class without a character; 0: none. Groups lie in each other at most
// QN_REGEX_MAX_DEPTH deep.
static uint32_t find_empty_class(const qn_gr_regex_node *node) {
    uint32_t column = node->kind == QN_REGEX_CLASS && !node->n_ranges ? node->column : 0;
    for (const qn_gr_regex_node *child = node->first; child && !column; child = child->next)
        column = find_empty_class(child);
    return column;
}

qn_status qn_gr_front_regex(int32_t *root, qn_gr_ast *ast, qn_str pattern,
                            const qn_grammar_opts *opts, qn_err *err) {
    qn_gr_regex_node *tree;
    uint64_t steps = qn_gr_steps(opts);
    QN_TRY(qn_gr_regex_parse(&tree, &ast->arena, pattern, &steps, err));
    ast->empty_class = find_empty_class(tree);
    return qn_gr_regex_lower(root, ast, tree, (qn_gr_regex_form){.around = -1, .steps = &steps},
                             err);
}
