#include "cli/look.h"

#include "core/debug.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

qn_look qn_look_at(FILE *to) {
    if (!isatty(fileno(to))) return (qn_look){0};
    const qn_surroundings around = qn_surroundings_read();
    const bool can_redraw = around.term && strcmp(around.term, "dumb") != 0;
    return (qn_look){.is_terminal = true,
                     .can_redraw = can_redraw,
                     .has_colour = can_redraw && !around.no_color};
}

int qn_look_width(FILE *to) {
    struct winsize size;
    return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}
