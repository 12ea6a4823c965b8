#define _DEFAULT_SOURCE // mkstemps
// /edit: a text is written in another program.
#include "cli/conversation.h"

#include "cli/out.h"
#include "cli/terminal.h"

#include "core/debug.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// A new file for this user alone, with a text in it; *path is owned.
static qn_status make_file(char **path, const char *text, qn_err *err) {
    const char *folder = qn_surroundings_read().temporary;
    qn_buf name = {0};
    qn_buf_printf(&name, "%s/quern-XXXXXX.md", folder ? folder : "/tmp");
    QN_TRY(qn_buf_take(path, &name, err));
    const int fd = mkstemps(*path, 3);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        const int why = errno;
        if (fd >= 0) (void)unlink(*path), close(fd);
        return QN_FAIL(err, IO, "%s: cannot make it: %s", *path, strerror(why));
    }
    fputs(text, file);
    const bool is_whole = !ferror(file);
    if (fclose(file) == 0 && is_whole) return QN_OK;
    const int why = errno;
    (void)unlink(*path);
    return QN_FAIL(err, IO, "%s: cannot write: %s", *path, strerror(why));
}

// The signals are the editor's own, and its streams the terminal.
static int start(pid_t *out, char *const *words) {
    posix_spawnattr_t how;
    posix_spawn_file_actions_t files;
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGQUIT);
    sigaddset(&usual, SIGHUP);
    sigaddset(&usual, SIGPIPE);
    if (posix_spawnattr_init(&how) != 0) return ENOMEM;
    if (posix_spawn_file_actions_init(&files) != 0) {
        posix_spawnattr_destroy(&how);
        return ENOMEM;
    }
    int why = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!why) why = posix_spawnattr_setsigmask(&how, &none);
    if (!why) why = posix_spawnattr_setsigdefault(&how, &usual);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && !why; fd++) {
        if (!isatty(fd)) why = posix_spawn_file_actions_addopen(&files, fd, "/dev/tty", O_RDWR, 0);
    }
    if (!why) why = posix_spawn(out, "/bin/sh", &files, &how, words, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    return why;
}

// Debian's name for the one that was chosen for the machine, else the one that all have.
static const char usual_editor[] = "$(command -v editor || echo vi)";

// The command may have options: the shell takes it apart, as it does everywhere else.
static qn_status run_editor(char *path, qn_err *err) {
    const char *editor = qn_surroundings_read().editor;
    qn_buf script = {0};
    char *command = NULL;
    qn_buf_printf(&script, "%s \"$@\"", editor ? editor : usual_editor);
    QN_TRY(qn_buf_take(&command, &script, err));
    char shell[] = "sh", option[] = "-c";
    char *const words[] = {shell, option, command, shell, path, NULL};
    void (*const quit)(int) = signal(SIGQUIT, SIG_IGN); // is the editor's as well
    pid_t pid;
    int state = 0;
    const int why = start(&pid, words);
    while (!why && waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    signal(SIGQUIT, quit);
    (void)qn_interrupt_take(); // that the editor had, too
    qn_free(command);
    if (why) return QN_FAIL(err, IO, "the editor cannot be started: %s", strerror(why));
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return QN_OK;
    return QN_FAIL(err, STATE,
                   "the editor '%s' failed (exit code %d), nothing is sent; $VISUAL or $EDITOR "
                   "names another one",
                   editor ? editor : "vi", WIFEXITED(state) ? WEXITSTATUS(state) : -1);
}

static qn_status write_text(qn_buf *out, const qn_conversation *c, const char *text, qn_err *err) {
    char *path = NULL;
    qn_status status = make_file(&path, text, err);
    if (!status) {
        qn_edit_lend(c->edit);
        status = run_editor(path, err);
        qn_edit_take_back(c->edit);
        if (!status) status = qn_text_read(out, path, QN_MAX_PROMPT, err);
        (void)unlink(path);
    }
    qn_free(path);
    return status;
}

// Begins with what follows the command, or with the question that /undo took back.
qn_status qn_slash_edit(qn_conversation *c, const char *rest, qn_err *err) {
    qn_buf text = {0};
    qn_brief brief;
    const char *begin = *rest || !c->draft.data ? rest : c->draft.data;
    qn_status status = write_text(&text, c, begin, err);
    while (text.size && strchr("\r\n", text.data[text.size - 1])) text.data[--text.size] = 0;
    const bool is_blank = !status && text.data[strspn(text.data, " \t\r\n")] == 0;
    const bool is_same = !status && strcmp(text.data, begin) == 0; // left without writing, say
    if (is_blank || is_same)
        qn_print_dim("the text is %s: nothing is sent", is_blank ? "empty" : "unchanged");
    if (!status && !is_blank && !is_same) {
        qn_conversation_remember(c, text.data);
        qn_print_dim("asked: %s", qn_brief_make(&brief, text.data));
        status = qn_conversation_ask(c, text.data, text.size, err);
    }
    qn_buf_deinit(&text);
    return status;
}
