#include "cli/ahead.h"

#include "core/mem.h"
#include "core/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

// Milliseconds without a key after which a text has ended; between looks at the terminal's mode.
enum { PAUSE_MS = 30, LOOK_MS = 200 };
enum { MAX_BYTES = 4 << 20, CTRL_C = 3, CTRL_Z = 26 };

struct qn_ahead {
    struct termios before; // the terminal when the reading began
    bool is_changed;       // it has the mode for reading
    bool has_marks;
    qn_is_command_fn *is_command;
    int wake[2]; // a pipe: a byte ends the reading
    pthread_t thread;
    bool is_reading;
    // The rest is the thread's while it reads.
    qn_buf text;  // what was typed
    size_t taken; // bytes at its beginning that were taken
    qn_buf burst; // what came since the last pause; not yet in `text`
    bool is_open; // a mark of the terminal began a paste that has not ended
    bool is_too_long;
    // Of a text that is too long the rest is dropped as well.
    enum { KEEPS, DROPS_TO_PAUSE, DROPS_TO_MARK } drops;
    size_t n_mark; // bytes at the end of what came that begin QN_PASTE_END
};

// --- the terminal --------------------------------------------------------------------------------

// What a signal that ends the program needs to leave the terminal as it was: the one thing here
// that belongs to no object.
static struct {
    struct termios mode;
    volatile sig_atomic_t has_marks;
} on_signal;

// Also where the terminal has no jobs.
static bool is_in_front(void) {
    const pid_t group = tcgetpgrp(STDIN_FILENO);
    return group < 0 || group == getpgrp();
}

void qn_paste_mark(bool is_on) {
    const ssize_t n = write(STDERR_FILENO, is_on ? "\033[?2004h" : "\033[?2004l", 8);
    (void)n; // without it pasted text comes without brackets
}

static void end_by_signal(int number) {
    if (is_in_front()) (void)tcsetattr(STDIN_FILENO, TCSANOW, &on_signal.mode);
    if (on_signal.has_marks) qn_paste_mark(false);
    signal(number, SIG_DFL);
    raise(number); // when this returns
}

static void watch_signals(bool is_on) {
    static const int numbers[] = {SIGTERM, SIGQUIT};
    const struct sigaction action = {.sa_handler = is_on ? end_by_signal : SIG_DFL};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
    }
}

// Keys as they are pressed, not shown; Ctrl-C and Ctrl-Z in their places among the others.
static bool set_mode(qn_ahead *a) {
    struct termios mode = a->before;
    mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ECHONL | IEXTEN);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    mode.c_cc[VINTR] = mode.c_cc[VSUSP] = _POSIX_VDISABLE;
    a->is_changed = tcsetattr(STDIN_FILENO, TCSANOW, &mode) == 0;
    return a->is_changed;
}

void qn_ahead_restore(qn_ahead *a) {
    if (a->is_changed) (void)tcsetattr(STDIN_FILENO, TCSANOW, &a->before);
    a->is_changed = false;
}

// The whole job stops, as the terminal would do it.
static void stop_job(qn_ahead *a) {
    qn_ahead_restore(a);
    if (a->has_marks) qn_paste_mark(false);
    kill(0, SIGTSTP);
}

// After going on the terminal is that of the shell.
static void look_at_mode(qn_ahead *a) {
    struct termios now;
    if (!is_in_front() || tcgetattr(STDIN_FILENO, &now) != 0 || !(now.c_lflag & ICANON)) return;
    if (set_mode(a) && a->has_marks) qn_paste_mark(true);
}

// --- the text ------------------------------------------------------------------------------------

static void drop_text(qn_ahead *a) {
    qn_buf_deinit(&a->text);
    qn_buf_deinit(&a->burst);
    a->text.max = a->burst.max = MAX_BYTES;
    a->taken = 0;
    a->is_open = false;
}

// Nobody types several lines at once; a key that is held down gives empty ones.
static bool has_lines(const char *burst) {
    const char *end = strchr(burst, '\n');
    return end && end[strspn(end, "\n")];
}

// Bytes of the lines at the beginning of what came that are commands: those come at once from who
// types fast, or where the way from the keyboard is slow.
static size_t commands_size(const qn_ahead *a) {
    const char *at = a->burst.data;
    const bool begins_line = a->text.size == 0 || a->text.data[a->text.size - 1] == '\n';
    for (const char *end; begins_line && (end = strchr(at, '\n')); at = end + 1)
        if (!a->is_command(at, (size_t)(end - at))) break;
    return (size_t)(at - a->burst.data);
}

// The last mark of the terminal in a text says whether a paste is open; without one nothing
// changes.
static bool is_left_open(const char *text, bool was_open) {
    for (const char *at = text; (at = strstr(at, "\033[20")); at++) {
        if (strncmp(at, QN_PASTE_BEGIN, strlen(QN_PASTE_BEGIN)) == 0) was_open = true;
        if (strncmp(at, QN_PASTE_END, strlen(QN_PASTE_END)) == 0) was_open = false;
    }
    return was_open;
}

// What was typed is too long, or memory too short, if anything was lost.
static void check_room(qn_ahead *a) {
    if (!a->burst.failed && !a->text.failed) return;
    const bool is_open = is_left_open(a->burst.data ? a->burst.data : "", a->is_open);
    drop_text(a);
    a->is_too_long = true;
    a->drops = is_open ? DROPS_TO_MARK : DROPS_TO_PAUSE;
}

static void end_burst(qn_ahead *a) {
    if (a->burst.size == 0) return;
    const bool is_marked = a->is_open || strstr(a->burst.data, QN_PASTE_BEGIN);
    const size_t n = is_marked ? 0 : commands_size(a);
    const bool is_pasted = !is_marked && has_lines(a->burst.data + n);
    qn_buf_add(&a->text, a->burst.data, n);
    if (is_pasted) qn_buf_text(&a->text, QN_PASTE_BEGIN);
    qn_buf_add(&a->text, a->burst.data + n, a->burst.size - n);
    if (is_pasted) qn_buf_text(&a->text, QN_PASTE_END);
    a->is_open = is_left_open(a->burst.data, a->is_open);
    qn_buf_clear(&a->burst);
    check_room(a);
}

// Whether the byte ends a mark of the end of a paste.
static bool ends_paste(qn_ahead *a, char c) {
    static const char mark[] = QN_PASTE_END;
    a->n_mark = c == mark[a->n_mark] ? a->n_mark + 1 : c == mark[0];
    if (mark[a->n_mark]) return false;
    a->n_mark = 0;
    return true;
}

static void take_byte(qn_ahead *a, char c) {
    const bool is_end = ends_paste(a, c);
    if (c == '\r') c = '\n'; // Enter, typed while a line was being edited
    if (c == CTRL_C) {
        drop_text(a);
        a->is_too_long = false;
        a->drops = KEEPS;
        kill(getpid(), SIGINT);
    } else if (c == CTRL_Z) {
        stop_job(a);
    } else if (c && a->drops == KEEPS) { // a NUL is nothing that anybody types
        qn_buf_add(&a->burst, &c, 1);
        check_room(a);
    }
    if (is_end && a->drops == DROPS_TO_MARK) a->drops = KEEPS;
}

// False: there is nothing more to come.
static bool read_some(qn_ahead *a) {
    char bytes[4096];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++) take_byte(a, bytes[i]);
    return n > 0 || (n < 0 && errno == EINTR);
}

// --- the thread ----------------------------------------------------------------------------------

// Nothing was typed for a while.
static void take_pause(qn_ahead *a) {
    if (a->burst.size)
        end_burst(a);
    else if (a->drops == DROPS_TO_PAUSE)
        a->drops = KEEPS;
    else
        look_at_mode(a);
}

static void *read_along(void *arg) {
    qn_ahead *a = arg;
    bool is_ending = false, goes_on = true;
    while (goes_on && !(is_ending && a->burst.size == 0 && a->drops == KEEPS)) {
        // In the background, what is typed belongs to somebody else.
        struct pollfd fds[] = {{.fd = is_in_front() ? STDIN_FILENO : -1, .events = POLLIN},
                               {.fd = is_ending ? -1 : a->wake[0], .events = POLLIN}};
        const bool is_typing = a->burst.size || a->drops == DROPS_TO_PAUSE;
        const int n = poll(fds, 2, is_typing ? PAUSE_MS : LOOK_MS);
        if (n < 0 && errno != EINTR) break;
        if (n == 0) take_pause(a);
        if (n <= 0) continue;
        if (fds[0].revents) goes_on = read_some(a);
        if (fds[1].revents) is_ending = true;
    }
    end_burst(a);
    return NULL;
}

void qn_ahead_begin(qn_ahead *a) {
    if (a->is_reading || tcgetattr(STDIN_FILENO, &a->before) != 0) return;
    on_signal.mode = a->before;
    on_signal.has_marks = a->has_marks;
    watch_signals(true);
    a->is_reading = set_mode(a) && qn_thread_start(&a->thread, read_along, a);
    if (a->is_reading) return;
    qn_ahead_restore(a);
    watch_signals(false);
}

bool qn_ahead_end(qn_ahead *a) {
    if (!a->is_reading) return true;
    char byte = 0;
    while (write(a->wake[1], &byte, 1) < 0 && errno == EINTR) continue;
    pthread_join(a->thread, NULL);
    while (read(a->wake[0], &byte, 1) < 0 && errno == EINTR) continue;
    watch_signals(false);
    a->is_reading = false;
    const bool is_whole = !a->is_too_long;
    a->is_too_long = false;
    a->drops = KEEPS;
    return is_whole;
}

bool qn_ahead_is_empty(const qn_ahead *a) { return a->taken >= a->text.size; }

bool qn_ahead_take(qn_ahead *a, char *c) {
    if (qn_ahead_is_empty(a)) return false;
    *c = a->text.data[a->taken++];
    if (a->taken < a->text.size) return true;
    qn_buf_clear(&a->text);
    a->taken = 0;
    return true;
}

// --- the object ----------------------------------------------------------------------------------

qn_status qn_ahead_create(qn_ahead **out, bool has_marks, qn_is_command_fn *is_command,
                          qn_err *err) {
    qn_ahead *a = qn_alloc(1, sizeof *a);
    if (!a) return QN_NOMEM(err, "what is typed");
    if (pipe(a->wake) != 0) {
        qn_free(a);
        return QN_FAIL(err, IO, "cannot make a pipe: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) (void)fcntl(a->wake[i], F_SETFD, FD_CLOEXEC);
    a->has_marks = has_marks;
    a->is_command = is_command;
    drop_text(a);
    *out = a;
    return QN_OK;
}

void qn_ahead_destroy(qn_ahead *a) {
    if (!a) return;
    if (a->is_reading) {
        (void)qn_ahead_end(a);
        qn_ahead_restore(a);
    }
    close(a->wake[0]);
    close(a->wake[1]);
    drop_text(a);
    qn_free(a);
}
