#define _GNU_SOURCE // memmem
#include "tokenizer/pretok.h"

#include "core/utf8.h"
#include "tokenizer/unicode.h"

typedef qn_status step_fn(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                          qn_err *err);
static qn_status run_step(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                          qn_err *err);

// --- what to do with matches ---------------------------------------------------------------------

// A splitter receives the text as a sequence of matches and gaps, without holes, and forms words.
typedef struct splitter {
    qn_pretok_run *run;
    size_t i_step;
    const qn_pretok_step *step;
    const char *text;
    bool is_first;
    size_t held, held_end; // a word that may still grow; held == held_end: none
    bool last_matched;     // the last thing received was a match
} splitter;

static qn_status emit(splitter *s, size_t start, size_t end, qn_err *err) {
    if (start == end) return QN_OK;
    return run_step(s->run, s->i_step + 1, (qn_str){s->text + start, end - start},
                    s->is_first && start == 0, err);
}

static qn_status flush(splitter *s, qn_err *err) {
    const size_t start = s->held, end = s->held_end;
    s->held = s->held_end;
    return emit(s, start, end, err);
}

// Emits the held part and holds the new one.
static qn_status hold(splitter *s, size_t start, size_t end, qn_err *err) {
    QN_TRY(flush(s, err));
    s->held = start;
    s->held_end = end;
    return QN_OK;
}

typedef qn_status receive_fn(splitter *s, size_t start, size_t end, bool matched, qn_err *err);

static qn_status receive_removed(splitter *s, size_t start, size_t end, bool matched, qn_err *err) {
    return matched ? QN_OK : emit(s, start, end, err);
}

static qn_status receive_isolated(splitter *s, size_t start, size_t end, bool matched,
                                  qn_err *err) {
    (void)matched;
    return emit(s, start, end, err);
}

// Of several matches in a row only the first joins the word before.
static qn_status receive_previous(splitter *s, size_t start, size_t end, bool matched,
                                  qn_err *err) {
    if (matched && !s->last_matched && s->held < s->held_end) {
        s->held_end = end;
        return QN_OK;
    }
    return hold(s, start, end, err);
}

// Of several matches in a row only the last joins the next word.
static qn_status receive_next(splitter *s, size_t start, size_t end, bool matched, qn_err *err) {
    if (matched) return hold(s, start, end, err);
    if (s->held == s->held_end) s->held = start;
    s->held_end = end;
    return flush(s, err);
}

static qn_status receive_contiguous(splitter *s, size_t start, size_t end, bool matched,
                                    qn_err *err) {
    if (matched == s->last_matched && s->held < s->held_end) {
        s->held_end = end;
        return QN_OK;
    }
    return hold(s, start, end, err);
}

static receive_fn *const receivers[QN_SPLIT_COUNT] = {
    [QN_SPLIT_REMOVED] = receive_removed,         [QN_SPLIT_ISOLATED] = receive_isolated,
    [QN_SPLIT_MERGE_PREVIOUS] = receive_previous, [QN_SPLIT_MERGE_NEXT] = receive_next,
    [QN_SPLIT_CONTIGUOUS] = receive_contiguous,
};

static qn_status receive(splitter *s, size_t start, size_t end, bool matched, qn_err *err) {
    const bool counts = matched != s->step->invert;
    QN_TRY(receivers[s->step->behavior](s, start, end, counts, err));
    s->last_matched = counts;
    return QN_OK;
}

// --- steps ---------------------------------------------------------------------------------------

static qn_status run_words(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                           qn_err *err) {
    const qn_word_rule *rule = &run->pretok->steps[i_step].rule;
    for (size_t i = 0; i < text.size;) {
        const qn_str rest = {text.data + i, text.size - i};
        const size_t valid = qn_unicode_valid_size(rest);
        for (size_t at = 0, n; at < valid; at += n) {
            n = qn_word_size(rule, (qn_str){rest.data + at, valid - at});
            QN_TRY(run_step(run, i_step + 1, (qn_str){rest.data + at, n}, is_first && i + at == 0,
                            err));
        }
        i += valid;
        const size_t start = i; // stray bytes are a word of their own
        while (i < text.size && qn_utf8_check(text.data + i, text.size - i) == 0) i++;
        const qn_str stray = {text.data + start, i - start};
        if (stray.size) QN_TRY(run_step(run, i_step + 1, stray, is_first && start == 0, err));
    }
    return QN_OK;
}

// Finds matches in text[from .. to), which is valid UTF-8, and moves *gap, the start of the text
// that is not handed out yet.
static qn_status split_segment(splitter *s, size_t from, size_t to, size_t *gap, qn_err *err) {
    qn_regex_run *regex = &s->run->regex[s->i_step];
    const qn_str text = {s->text + from, to - from};
    qn_regex_run_set(regex, text);
    for (size_t i = 0; i < text.size;) {
        bool found;
        size_t end = i;
        QN_TRY(qn_regex_match(&found, &end, regex, i, err));
        if (found) {
            // Also an empty match ends the gap before it.
            if (*gap < from + i) QN_TRY(receive(s, *gap, from + i, false, err));
            if (end > i) QN_TRY(receive(s, from + i, from + end, true, err));
            *gap = from + end;
        }
        i = found && end > i ? end : i + qn_utf8_check(text.data + i, text.size - i);
    }
    return QN_OK;
}

static qn_status run_regex(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                           qn_err *err) {
    splitter s = {.run = run,
                  .i_step = i_step,
                  .step = &run->pretok->steps[i_step],
                  .text = text.data,
                  .is_first = is_first};
    size_t gap = 0;
    for (size_t i = 0; i < text.size;) { // stray bytes match nothing and stay in the gap
        const size_t n = qn_unicode_valid_size((qn_str){text.data + i, text.size - i});
        QN_TRY(split_segment(&s, i, i + n, &gap, err));
        i += n;
        while (i < text.size && qn_utf8_check(text.data + i, text.size - i) == 0) i++;
    }
    if (gap < text.size) QN_TRY(receive(&s, gap, text.size, false, err));
    return flush(&s, err);
}

static qn_status run_string(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                            qn_err *err) {
    const qn_pretok_step *step = &run->pretok->steps[i_step];
    splitter s = {
        .run = run, .i_step = i_step, .step = step, .text = text.data, .is_first = is_first};
    size_t i = 0;
    while (i < text.size && step->from.size) {
        const char *hit = memmem(text.data + i, text.size - i, step->from.data, step->from.size);
        if (!hit) break;
        const size_t at = (size_t)(hit - text.data);
        if (i < at) QN_TRY(receive(&s, i, at, false, err));
        QN_TRY(receive(&s, at, at + step->from.size, true, err));
        i = at + step->from.size;
    }
    if (i < text.size) QN_TRY(receive(&s, i, text.size, false, err));
    return flush(&s, err);
}

static qn_status run_prefix(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                            qn_err *err) {
    if (text.size && text.data[0] == ' ') return run_step(run, i_step + 1, text, is_first, err);
    qn_buf *buf = &run->text[i_step];
    qn_buf_clear(buf);
    qn_buf_text(buf, " ");
    qn_buf_add(buf, text.data, text.size);
    if (buf->failed) return QN_NOMEM(err, "a text with a space in front");
    return run_step(run, i_step + 1, (qn_str){buf->data, buf->size}, is_first, err);
}

static qn_status run_metaspace(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                               qn_err *err) {
    const qn_pretok_step *step = &run->pretok->steps[i_step];
    const qn_str mark = step->from;
    qn_buf *buf = &run->text[i_step];
    qn_buf_clear(buf);
    const bool has_mark =
        text.size && (text.data[0] == ' ' ||
                      (text.size >= mark.size && memcmp(text.data, mark.data, mark.size) == 0));
    const bool wants_mark =
        step->scheme == QN_PREFIX_ALWAYS || (step->scheme == QN_PREFIX_FIRST && is_first);
    if (wants_mark && !has_mark) qn_buf_add(buf, mark.data, mark.size);
    for (size_t i = 0; i < text.size; i++) {
        const bool is_space = text.data[i] == ' ';
        qn_buf_add(buf, is_space ? mark.data : text.data + i, is_space ? mark.size : 1);
    }
    if (buf->failed) return QN_NOMEM(err, "a text with marked spaces");
    return run_step(run, i_step + 1, (qn_str){buf->data, buf->size}, is_first, err);
}

static step_fn *const step_fns[QN_PRETOK_KIND_COUNT] = {
    [QN_PRETOK_WORDS] = run_words,         [QN_PRETOK_REGEX] = run_regex,
    [QN_PRETOK_STRING] = run_string,       [QN_PRETOK_PREFIX] = run_prefix,
    [QN_PRETOK_METASPACE] = run_metaspace,
};

// Steps nest as deep as the list is long, QN_PRETOK_MAX at most.
static qn_status run_step(qn_pretok_run *run, size_t i_step, qn_str text, bool is_first,
                          qn_err *err) {
    if (i_step == run->pretok->n) return run->word(run->arg, text.data, text.size, err);
    return step_fns[run->pretok->steps[i_step].kind](run, i_step, text, is_first, err);
}

// --- the whole -----------------------------------------------------------------------------------

qn_status qn_pretok_run_init(qn_pretok_run *out, const qn_pretok *pretok, qn_word_fn *word,
                             void *arg, qn_err *err) {
    *out = (qn_pretok_run){.pretok = pretok, .word = word, .arg = arg};
    for (size_t i = 0; i < pretok->n; i++) {
        if (pretok->steps[i].kind != QN_PRETOK_REGEX) continue;
        const qn_status status = qn_regex_run_init(&out->regex[i], &pretok->steps[i].regex, err);
        if (status) {
            qn_pretok_run_deinit(out);
            return status;
        }
    }
    return QN_OK;
}

qn_status qn_pretok_apply(qn_pretok_run *run, qn_str text, bool is_first, qn_err *err) {
    return text.size ? run_step(run, 0, text, is_first, err) : QN_OK;
}

void qn_pretok_run_deinit(qn_pretok_run *run) {
    for (size_t i = 0; i < QN_PRETOK_MAX; i++) {
        if (run->regex[i].regex) qn_regex_run_deinit(&run->regex[i]);
        qn_buf_deinit(&run->text[i]);
    }
}

void qn_pretok_deinit(qn_pretok *pretok) {
    for (size_t i = 0; i < pretok->n; i++) {
        if (pretok->steps[i].regex.code) qn_regex_deinit(&pretok->steps[i].regex);
    }
    *pretok = (qn_pretok){0};
}
