#include "gen/grammar/regex.h"

#include "gen/grammar/json.h"
#include "gen/grammar/object.h"

typedef struct lowering {
    qn_ast *ast;
    qn_regex_form form;
    int32_t around; // any text; EMPTY when the whole must match
    qn_err *err;
} lowering;

// Where in the whole text a node stands: a choice at an end takes what is around into its branches,
// for each of them may be anchored or not.
typedef struct ends {
    bool start, end;
} ends;

static qn_status lower_choice(int32_t *out, lowering *low, const qn_regex_node *node, ends at);

static qn_status lower_item(int32_t *out, lowering *low, const qn_regex_node *node) {
    switch (node->kind) {
    case QN_REGEX_CLASS:
        *out = low->form.in_json ? qn_json_codes(low->ast, node->ranges, node->n_ranges)
                                 : qn_ast_codes(low->ast, node->ranges, node->n_ranges);
        return QN_OK;
    case QN_REGEX_REP: {
        int32_t body;
        QN_TRY(lower_item(&body, low, node->first));
        *out = qn_ast_rep(low->ast, body, node->min, node->max);
        return QN_OK;
    }
    case QN_REGEX_ALT:
        return lower_choice(out, low, node, (ends){false, false});
    default:
        return QN_FAIL(low->err, UNSUPPORTED,
                       "regular expression, column %u: %s is supported only at %s", node->column,
                       node->kind == QN_REGEX_START ? "^" : "$",
                       node->kind == QN_REGEX_START ? "the start" : "the end");
    }
}

static qn_status lower_sequence(int32_t *out, lowering *low, const qn_regex_node *sequence,
                                ends at) {
    const qn_regex_node *first = sequence->first, *last = sequence->last;
    bool free_start = at.start, free_end = at.end; // something else may stand there
    for (; at.start && first && first->kind == QN_REGEX_START; first = first->next)
        free_start = false;
    for (; at.end && last && last->kind == QN_REGEX_END; last = last->previous) free_end = false;
    if (!first || !last || last->next == first) { // nothing between the anchors
        *out = free_start || free_end ? low->around : QN_AST_EMPTY;
        return QN_OK;
    }
    int32_t node = free_end && last->kind != QN_REGEX_ALT ? low->around : QN_AST_EMPTY;
    for (const qn_regex_node *item = last;; item = item->previous) {
        int32_t made;
        const ends here = {free_start && item == first, free_end && item == last};
        if (item->kind == QN_REGEX_ALT)
            QN_TRY(lower_choice(&made, low, item, here));
        else
            QN_TRY(lower_item(&made, low, item));
        node = qn_ast_seq(low->ast, made, node);
        if (item == first) break;
    }
    if (free_start && first->kind != QN_REGEX_ALT) node = qn_ast_seq(low->ast, low->around, node);
    *out = node;
    return QN_OK;
}

static qn_status lower_choice(int32_t *out, lowering *low, const qn_regex_node *node, ends at) {
    int32_t choice = QN_AST_NEVER;
    for (const qn_regex_node *branch = node->last; branch; branch = branch->previous) {
        int32_t made;
        QN_TRY(lower_sequence(&made, low, branch, at));
        choice = qn_ast_alt(low->ast, made, choice);
    }
    *out = choice;
    return QN_OK;
}

qn_status qn_regex_lower(int32_t *out, qn_ast *ast, const qn_regex_node *tree, qn_regex_form form,
                         qn_err *err) {
    lowering low = {.ast = ast, .form = form, .around = QN_AST_EMPTY, .err = err};
    if (form.around >= 0) low.around = qn_ast_rep(ast, form.around, 0, QN_AST_MANY);
    return lower_choice(out, &low, tree, (ends){true, true});
}

bool qn_regex_take_count(qn_regex_node *tree, uint32_t *min, uint32_t *max) {
    if (tree->first != tree->last) return false;
    const qn_regex_node *start = tree->first->first;
    if (!start || start->kind != QN_REGEX_START || !start->next || !start->next->next) return false;
    qn_regex_node *loop = start->next;
    if (loop->kind != QN_REGEX_REP || loop->first->kind != QN_REGEX_CLASS) return false;
    if (loop->next->kind != QN_REGEX_END || loop->next->next) return false;
    *min = loop->min;
    *max = loop->max;
    loop->min = 0;
    loop->max = QN_AST_MANY;
    return true;
}

qn_status qn_front_regex(int32_t *root, qn_ast *ast, qn_str pattern, qn_err *err) {
    qn_regex_node *tree;
    QN_TRY(qn_regex_parse(&tree, &ast->arena, pattern, err));
    return qn_regex_lower(root, ast, tree, (qn_regex_form){.around = -1}, err);
}
