# Manual pages of the library from the comments of quern.h: awk -v out=FOLDER -v version=V -f man3.awk include/quern.h
#
# The comment at the top of the header becomes libquern.3, each of its sections a page
# libquern-SECTION.3, and every function a page that leads to its section's.

function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/'/, "\\(aq", text)
    gsub(/"/, "\\(dq", text)
    gsub(/~/, "\\(ti", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/`/, "\\(ga", text)
    sub(/^\./, "\\\\\\&.", text)
    return text
}

function put(text) { body = body text "\n" }

function put_lines(text,    lines, n, i) {
    n = split(text, lines, "\n")
    put(".EX")
    for (i = 1; i < n; i++) put(escape(lines[i]))
    put(".EE")
}

# Lines of a comment, each with its newline: paragraphs, "- " items, "  qn_name  what it is", and what is indented more,
# which is code.
function put_text(text,    lines, n, i, line, indent, base, is_code, was_code, is_list) {
    n = split(text, lines, "\n")
    base = was_code = is_list = 0
    for (i = 1; i < n; i++) {
        line = lines[i]
        match(line, /^ */)
        indent = RLENGTH
        line = substr(line, indent + 1)
        is_list = line != "" && !base && (indent > 2 ? is_list : indent == 2 && line ~ /^qn_[a-z_]+ +[a-z]/)
        if (indent < base) base = 0
        is_code = !is_list && line != "" && line !~ /^- / && indent >= base + 2
        if (is_code && !was_code) put(".PP\n.EX")
        if (!is_code && was_code) put(".EE")
        if (!is_code && was_code && line != "" && !is_list && line !~ /^- /) put(base ? ".IP \"\" 2" : ".PP")
        was_code = is_code
        if (is_list && indent == 2) {
            match(line, /^[a-z_]+ +/)
            put(".TP\n.B " substr(line, 1, index(line, " ") - 1))
            line = substr(line, RLENGTH + 1)
        } else if (line ~ /^- /) {
            base = indent + 2
            put(".IP \\(bu 2")
            line = substr(line, 3)
        } else if (line == "" && i > 1 && i < n - 1) {
            base = 0
            if (lines[i + 1] !~ /^ *(- |qn_[a-z_]+ +[a-z])/) line = ".PP"
        }
        if (line == ".PP") put(line)
        else if (line != "") put(is_code ? escape(sprintf("%" (indent - base) "s%s", "", line)) : escape(line))
    }
    if (was_code) put(".EE")
}

# Functions that are declared in a piece of code.
function note_functions(text,    parts, n, i) {
    n = split(text, parts, "QN_API ")
    for (i = 2; i <= n; i++) {
        if (!match(parts[i], /qn_[a-z0-9_]+\(/)) continue
        functions = functions " " substr(parts[i], RSTART, RLENGTH - 1)
    }
}

# Without what is for compilers; lines after the first move with it.
function declare(line,    before) {
    before = length(line)
    if (sub(/^QN_API (QN_MUST_CHECK )?/, "", line))
        moved = before - length(line)
    else if (substr(line, 1, moved) ~ /^ +$/)
        line = substr(line, moved + 1)
    return line
}

function flush_item() {
    if (code comment != "" && body != "") put(".PP")
    if (code != "") put_lines(code)
    if (code != "" && comment != "") put(".RS 4")
    if (comment != "") put_text(comment)
    if (code != "" && comment != "") put(".RE")
    code = comment = ""
}

function heading(name) {
    return ".TH " escape(toupper(name)) " 3 \"\" \"Quern " version "\" \"Library of Quern\"\n"
}

function finish_section(    file, names, n, i) {
    flush_item()
    if (section == "") return
    slug = section
    gsub(/[^a-z0-9]+/, "-", slug)
    slug = "libquern-" slug
    file = out "/" slug ".3"
    n = split(functions, names, " ")
    printf "%s.SH NAME\n", heading(slug) >file
    for (i = 1; i <= n; i++) {
        printf "%s%s", names[i], (i < n ? ",\n" : " ") >file
        printf ".so man3/%s.3\n", slug >(out "/" names[i] ".3")
        close(out "/" names[i] ".3")
    }
    if (n == 0) printf "%s ", escape(slug) >file
    printf "\\- %s\n.SH SYNOPSIS\n.nf\n.B #include <quern.h>\n.fi\n.PP\n", section >file
    printf "Link with \\fI\\-lquern\\fR.\n.SH DESCRIPTION\n%s.SH SEE ALSO\n.BR libquern (3)\n", body >file
    close(file)
    pages = pages ".TP\n.BR " escape(slug) " (3)\n" section "\n"
    body = functions = ""
}

BEGIN { in_top = 1 }

in_top && /^\/\// {
    if (NR > 2) top = top substr($0, 4) "\n" # after what the file is, and a note for another tool
    next
}
{ in_top = 0 }

/^\/\/ --- / {
    finish_section()
    section = $0
    gsub(/^\/\/ --- | -+$/, "", section)
    depth = 0
    next
}
section == "" { next }
/^#ifdef __cplusplus/ { exit }
/^\/\/ clang-format/ { next }
depth == 0 && /^\/\// {
    if (code != "") flush_item()
    comment = comment substr($0, 4) "\n"
    next
}
depth == 0 && /^$/ {
    flush_item()
    next
}
# What is said above a function is not said of the next one.
depth == 0 && /^QN_API / && comment != "" && code != "" { flush_item() }
{
    note_functions($0)
    code = code declare($0) "\n"
    depth += gsub(/[{(]/, "&") - gsub(/[})]/, "&")
}

END {
    finish_section()
    body = ""
    put_text(top)
    file = out "/libquern.3"
    printf "%s.SH NAME\nlibquern \\- run language models\n.SH SYNOPSIS\n.nf\n", heading("libquern") >file
    printf ".B #include <quern.h>\n.fi\n.PP\nLink with \\fI\\-lquern\\fR; pkg\\-config knows it as quern.\n" >file
    printf ".SH DESCRIPTION\n%s.SH PAGES\n%s.SH SEE ALSO\n.BR quern (1)\n", body, pages >file
}
