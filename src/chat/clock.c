#include "chat/clock.h"

#include <time.h>

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const int days_before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};

static bool is_leap(int64_t year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

// 1 ... 366
static int64_t day_of_year(const int64_t now[6]) {
    return days_before[now[1] - 1] + now[2] + (now[1] > 2 && is_leap(now[0]));
}

// 0 is Sunday.
static int64_t day_of_week(const int64_t now[6]) {
    const int64_t y = now[0] - 1;
    return (y * 365 + y / 4 - y / 100 + y / 400 + day_of_year(now)) % 7;
}

// --- reading -------------------------------------------------------------------------------------

static bool read_digits(int64_t *out, qn_str *s, size_t n) {
    if (s->size < n) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->data[i] < '0' || s->data[i] > '9') return false;
        *out = *out * 10 + (s->data[i] - '0');
    }
    *s = (qn_str){s->data + n, s->size - n};
    return true;
}

static bool skip(qn_str *s, const char *any) {
    if (s->size == 0 || !strchr(any, s->data[0])) return false;
    *s = (qn_str){s->data + 1, s->size - 1};
    return true;
}

static bool is_possible(const int64_t now[6]) {
    if (now[0] < 1 || now[1] < 1 || now[1] > 12 || now[2] < 1) return false;
    const int64_t max =
        days_before[now[1]] - days_before[now[1] - 1] + (now[1] == 2 && is_leap(now[0]));
    return now[2] <= max && now[3] < 24 && now[4] < 60 && now[5] < 60;
}

qn_status qn_jinja_clock_read(int64_t now[6], qn_str text, qn_err *err) {
    int64_t t[6] = {0}, ignored;
    qn_str s = text;
    bool is_fine = read_digits(&t[0], &s, 4) && skip(&s, "-") && read_digits(&t[1], &s, 2) &&
                   skip(&s, "-") && read_digits(&t[2], &s, 2);
    if (is_fine && s.size)
        is_fine = skip(&s, "T ") && read_digits(&t[3], &s, 2) && skip(&s, ":") &&
                  read_digits(&t[4], &s, 2);
    if (is_fine && s.size) is_fine = skip(&s, ":") && read_digits(&t[5], &s, 2);
    if (is_fine && s.size) is_fine = skip(&s, ".") && s.size > 0;
    while (is_fine && s.size) is_fine = read_digits(&ignored, &s, 1);
    if (!is_fine || !is_possible(t))
        return QN_FAIL(err, ARGUMENT, "now: '%.*s' is not a time such as 2026-01-02T03:04:05",
                       (int)(text.size < 80 ? text.size : 80), text.data);
    memcpy(now, t, sizeof t);
    return QN_OK;
}

void qn_jinja_clock_now(int64_t now[6]) {
    const time_t seconds = time(NULL);
    struct tm tm = {.tm_mday = 1};
    (void)localtime_r(&seconds, &tm);
    const int64_t t[] = {
        1900 + (int64_t)tm.tm_year,     1 + (int64_t)tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min,
        tm.tm_sec < 60 ? tm.tm_sec : 59};
    memcpy(now, t, sizeof t);
}

// --- printing ------------------------------------------------------------------------------------

static int64_t hour_of_12(const int64_t now[6]) { return now[3] % 12 ? now[3] % 12 : 12; }

// Letters that stand for a number of that many digits. The sign '-' drops leading zeros.
static bool print_number(qn_buf *to, char letter, bool is_bare, const int64_t now[6]) {
    const struct {
        char letter;
        int digits;
        int64_t value;
    } numbers[] = {{'Y', 1, now[0]},
                   {'m', 2, now[1]},
                   {'d', 2, now[2]},
                   {'H', 2, now[3]},
                   {'M', 2, now[4]},
                   {'S', 2, now[5]},
                   {'y', 2, now[0] % 100},
                   {'I', 2, hour_of_12(now)},
                   {'j', 3, day_of_year(now)},
                   {'C', 2, now[0] / 100},
                   {'w', 1, day_of_week(now)},
                   {'f', 6, 0},
                   {'u', 1, day_of_week(now) ? day_of_week(now) : 7},
                   {'U', 2, (day_of_year(now) + 6 - day_of_week(now)) / 7},
                   {'W', 2, (day_of_year(now) + 6 - (day_of_week(now) + 6) % 7) / 7}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].letter != letter) continue;
        qn_buf_printf(to, "%0*lld", is_bare ? 1 : numbers[i].digits, (long long)numbers[i].value);
        return true;
    }
    return false;
}

static bool print_word(qn_buf *to, char letter, const int64_t now[6]) {
    const struct {
        char letter;
        int max;
        const char *word;
    } words[] = {{'B', 9, months[now[1] - 1]},
                 {'b', 3, months[now[1] - 1]},
                 {'h', 3, months[now[1] - 1]},
                 {'A', 9, days[day_of_week(now)]},
                 {'a', 3, days[day_of_week(now)]},
                 {'p', 2, now[3] < 12 ? "AM" : "PM"},
                 {'n', 1, "\n"},
                 {'t', 1, "\t"},
                 {'%', 1, "%"},
                 {'Z', 0, ""},
                 {'z', 0, ""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].letter != letter) continue;
        qn_buf_printf(to, "%.*s", words[i].max, words[i].word);
        return true;
    }
    return false;
}

// Letters that stand for a format.
static const char *longer(char letter) {
    static const struct {
        char letter;
        const char *format;
    } forms[] = {{'F', "%Y-%m-%d"}, {'T', "%H:%M:%S"}, {'D', "%m/%d/%y"},   {'R', "%H:%M"},
                 {'x', "%m/%d/%y"}, {'X', "%H:%M:%S"}, {'r', "%I:%M:%S %p"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].letter == letter) return forms[i].format;
    }
    return NULL;
}

void qn_jinja_clock_print(qn_buf *to, qn_str format, const int64_t now[6]) {
    for (size_t i = 0; i < format.size; i++) {
        const size_t begin = i;
        if (format.data[i] != '%' || i + 1 == format.size) {
            qn_buf_add(to, format.data + i, 1);
            continue;
        }
        const bool is_bare = format.data[i + 1] == '-' && i + 2 < format.size;
        i += is_bare ? 2 : 1;
        const char letter = format.data[i];
        const char *form = longer(letter);
        if (form) {
            qn_jinja_clock_print(to, qn_str_of(form),
                                 now); // formats of formats have no letters in them
        } else if (letter == 'e') {
            qn_buf_printf(to, is_bare ? "%lld" : "%2lld", (long long)now[2]);
        } else if (letter == 'c') {
            qn_buf_printf(to, "%.3s %.3s %2lld ", days[day_of_week(now)], months[now[1] - 1],
                          (long long)now[2]);
            qn_jinja_clock_print(to, qn_str_of("%T %Y"), now);
        } else if (!print_number(to, letter, is_bare, now) && !print_word(to, letter, now)) {
            qn_buf_add(to, format.data + begin, i - begin + 1);
        }
    }
}
