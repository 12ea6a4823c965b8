#include "cli/progress.h"

#include "cli/look.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>

// Columns of the bar itself, and parts of the line beside it: the name, the share, the count, the
// rate, the time left.
enum { MAX_BAR = 30, MIN_BAR = 10, N_PARTS = 5, LONGEST = 64 };

static void write_rate(char *to, const qn_progress *p, double rate) {
    if (*p->unit)
        snprintf(to, LONGEST, ", %.*f %s/s", rate < 10 ? 1 : 0, rate, p->unit);
    else
        snprintf(to, LONGEST, "  %.0f MiB/s", rate / (1 << 20));
}

static void write_left(char *to, double seconds) {
    const long whole = (long)seconds;
    if (whole >= 3600)
        snprintf(to, LONGEST, "  %ld h %ld min left", whole / 3600, whole / 60 % 60);
    else if (whole >= 60)
        snprintf(to, LONGEST, "  %ld min %ld s left", whole / 60, whole % 60);
    else
        snprintf(to, LONGEST, "  %ld s left", whole);
}

static void write_parts(char parts[N_PARTS][LONGEST], const qn_progress *p, int64_t done,
                        int64_t total, double share, double seconds) {
    snprintf(parts[0], LONGEST, "%s [", p->what);
    snprintf(parts[1], LONGEST, "] %3d %%", (int)(share * 100));
    if (*p->unit) snprintf(parts[2], LONGEST, "  %lld of %lld", (long long)done, (long long)total);
    if (seconds <= 0.5 || done <= p->from) return; // before that a rate is noise
    const double rate = (double)(done - p->from) / seconds;
    write_rate(parts[3], p, rate);
    write_left(parts[4], (double)(total - done) / rate);
}

// On one row, so that it can be taken away: where the terminal is narrow, the last parts are left
// out, then the bar is shorter.
static void draw(qn_progress *p, int64_t done, int64_t total, double seconds) {
    enum { USUAL_WIDTH = 80 };
    const double share = total > 0 ? (double)done / (double)total : 1;
    const int width = qn_look_width(stderr), room = (width > 1 ? width : USUAL_WIDTH) - 1;
    char parts[N_PARTS][LONGEST] = {0}, bar[MAX_BAR + 1] = {0}, line[(N_PARTS + 1) * LONGEST];
    write_parts(parts, p, done, total, share, seconds);
    int left = room, n = 0;
    while (n < N_PARTS && (n < 2 || left - (int)strlen(parts[n]) >= MIN_BAR))
        left -= (int)strlen(parts[n++]);
    const int size = left > MAX_BAR ? MAX_BAR : left > 0 ? left : 0;
    for (int i = 0; i < size; i++) bar[i] = i < (int)(share * size) ? '#' : '.';
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        const char *part = parts[i], *before = i == 1 ? bar : "";
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", before, part);
    }
    fprintf(stderr, "\r\033[K%.*s", room, line);
    fflush(stderr);
    p->is_drawn = true;
}

bool qn_progress_show(void *progress, int64_t done, int64_t total) {
    qn_progress *p = progress;
    const double now = qn_now();
    if (p->start == 0) p->start = now;
    if (qn_look_at(stderr).can_redraw && (now - p->shown > 0.1 || done >= total)) {
        p->shown = now;
        draw(p, done, total, now - p->start);
    }
    return !qn_stop_is_wanted();
}

void qn_progress_end(qn_progress *progress) {
    if (progress->is_drawn) fprintf(stderr, "\r\033[K");
    progress->is_drawn = false;
}
