"""The page of bench/speed: records of measurements -> one HTML file that needs nothing else.

It has no scripts and no addresses; colours follow the reader's choice of light or dark. It is XML as well, so that a test
can read it. With several records, the last is told by full lines and the others by broken ones.
"""
import math
import pathlib
import typing

import tool

LIMITS = (("read_gbs", "GB/s read"), ("int8_tops", "TOP/s int8"), ("f32_gflops", "GFLOP/s f32"))
escape = tool.escape

STYLE = """
:root{--page:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5b6776;--line:#dfe4ea;--grid:#e9edf2;
--exact:#2663b8;--fast:#1f8a5b;--balanced:#7a4fb3;--peer:#c25a17;--peer2:#b3365f;--small:#0f8a9d;--roof:#39465a}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2029;--ink:#e6eaf0;--soft:#9aa7b7;--line:#2e3845;--grid:#262f3a;
--exact:#74abf5;--fast:#59c896;--balanced:#b795ea;--peer:#f29a5c;--peer2:#ef86a8;--small:#58c3d3;--roof:#b9c4d3}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 16px 56px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:1.08rem;margin:0 0 2px}
p{margin:0 0 8px}
.soft,.note,figcaption,summary{color:var(--soft)}
.note,figcaption{font-size:.9rem;margin-bottom:8px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;min-width:0}
.tile b{display:block;font-size:1.4rem;line-height:1.2;letter-spacing:-.01em;white-space:nowrap}
.tile span{color:var(--soft);font-size:.86rem;display:block}
.cards{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
.wide{grid-column:1/-1}
@media (max-width:760px){.cards{grid-template-columns:minmax(0,1fr)}main{padding:20px 10px 40px}.card{padding:14px 12px}}
.card{margin:0}
.side table{font-size:.84rem}
.side td,.side th{padding-right:7px}
.side{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:8px 20px;align-items:center}
@media (max-width:900px){.side{grid-template-columns:minmax(0,1fr)}}
svg.plot{display:block;width:100%;height:auto;font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--ink)}
svg .axis{fill:var(--soft)}
.grid{stroke:var(--grid);fill:none}
.base{stroke:var(--line);fill:none}
.roof{stroke:var(--roof);stroke-width:2;fill:none}
svg .halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0 6px;padding:0;font-size:.9rem}
ul.legend svg{width:30px;height:12px;vertical-align:-1px;margin-right:6px}
details{margin-top:8px;font-size:.88rem}
summary{cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin-top:6px;font-variant-numeric:tabular-nums;width:100%}
th,td{text-align:right;padding:3px 10px 3px 0;border-bottom:1px solid var(--grid);white-space:nowrap}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left}
td.text{text-align:left;white-space:normal;overflow-wrap:anywhere}
code{font:.86em ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
"""

# --- numbers as text ---


def told(value, digits=3):
    """Three digits that count, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def told_spread(values, digits=3):
    if not values:
        return "-"
    middle = told(tool.median(values), digits)
    return middle if len(values) < 2 else f"{middle} ({told(min(values), digits)} to {told(max(values), digits)})"


def told_error(value):
    """As 1.7 x 10^-3."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits} \u00d7 10{str(int(exponent)).translate(SUPER)}"


SUPER = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")

# --- what a record has ---


def curve(record, picture, series, column="tps"):
    """[(x, samples)] by x."""
    points = []
    for name in record.runs:
        parts = name.split("/")
        if len(parts) >= 3 and parts[0] == picture and "/".join(parts[1:-1]) == series and parts[-1].isdigit():
            values = record.values(name, column)
            if values:
                points.append((int(parts[-1]), values))
    return sorted(points)


def list_series(record, picture):
    """Those that have samples, in the order of their first run."""
    found = []
    for name in record.runs:
        parts = name.split("/")
        if len(parts) >= 3 and parts[0] == picture and record.count(name) and "/".join(parts[1:-1]) not in found:
            found.append("/".join(parts[1:-1]))
    return found


def peers_of(record):
    peers = record.about.get("peers")
    return [str(peer) for peer in peers] if isinstance(peers, list) else []


def label_of(record):
    return str(record.about.get("label", "quern"))


# Colour and mark of a series; the first peer has its own, further ones another.
LOOKS = {"exact": ("exact", "circle"), "fast": ("fast", "square"), "balanced": ("balanced", "diamond"),
         "exact, q8_0 state": ("small", "diamond"), "decode": ("exact", "circle"), "prefill": ("fast", "square")}


def look_of(record, series):
    if series in LOOKS:
        return LOOKS[series]
    peers = peers_of(record)
    return ("peer", "triangle") if not peers or series == peers[0] else ("peer2", "cross")


def told_series(record, series):
    return series if series in peers_of(record) or series in ("decode", "prefill") else f"quern {series}"


# Where the samples of a test may be: (picture, x).
TESTS = {"prefill 512": (("rows", 512), ("prefill", 512)), "decode": (("depth", 0), ("sequences", 1), ("decode", 0)),
         "decode at 1024": (("depth", 1024),), "decode at 4096": (("depth", 4096),), "8 sequences": (("sequences", 8),)}


def samples_of(record, test, series):
    return next((found for picture, x in TESTS[test] if (found := record.values(f"{picture}/{series}/{x}", "tps"))), [])


# --- drawing ---

MARKS = {"circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "square": "M-3.6-3.6h7.2v7.2h-7.2z", "diamond": "M0-5L5 0L0 5L-5 0z",
         "triangle": "M0-5L4.8 3.6H-4.8z", "cross": "M-4.5-2L-2-4.5L0-2.3L2-4.5L4.5-2L2.3 0L4.5 2L2 4.5L0 2.3L-2 4.5L-4.5 2L-2.3 0z"}


def draw_mark(x, y, colour, mark, title=""):
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{MARKS[mark]}" fill="var(--{colour})">{inside}</path>'


def draw_text(x, y, text, anchor="middle", kind="axis", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"{more}>{escape(text)}</text>'


class Axis:
    """Values -> pixels; by powers, or in even steps from zero on."""

    def __init__(self, values, pixels, log=0, rounded=True):
        self.log, (self.first, self.last) = log, pixels
        if log:
            self.low, self.high = math.log(min(values), log), math.log(max(values), log)
            if self.high - self.low < 1e-9:
                self.low, self.high = self.low - 0.5, self.high + 0.5
        else:
            step = self.step_of(max(values) or 1)
            self.low, self.high = 0, max(values) or 1
            self.step = step
            if rounded:
                self.high = math.ceil(self.high / step * (1 - 1e-9)) * step

    @staticmethod
    def step_of(most):
        power = 10 ** math.floor(math.log10(most / 4))
        return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f * 4.6 >= most)

    def at(self, value):
        value = math.log(value, self.log) if self.log else value
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self):
        if self.log:
            factors = (1, 2, 5) if self.log == 10 and self.high - self.low < 1.7 else (1,)
            all_ticks = [f * self.log ** e for e in range(math.floor(self.low), math.floor(self.high) + 1) for f in factors]
            return [v for v in all_ticks if self.low - 1e-9 <= math.log(v, self.log) <= self.high + 1e-9]
        return [i * self.step for i in range(math.floor(self.high / self.step + 1e-9) + 1)]


def tick_text(value):
    if value and value < 1:
        return f"{value:.6f}".rstrip("0")
    return f"{value:,.0f}".replace(",", "\u2009") if value >= 10000 else f"{value:g}"


class Plot:
    """A picture with axes. Sizes are those of a phone's width, so that letters stay readable there."""

    def __init__(self, title, width=460, height=300, left=48, right=16, top=26, bottom=44):
        self.title, self.width, self.height = title, width, height
        self.box = left, width - right, top, height - bottom
        self.parts = []

    def axes(self, x, y, x_name, y_name, x_ticks=None, y_text=tick_text):
        left, right, top, bottom = self.box
        for value in y.ticks():
            at = y.at(value)
            self.parts.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>' +
                              draw_text(left - 7, at + 4.5, y_text(value), "end"))
        last = -math.inf
        for value in x_ticks or x.ticks():
            at, text = x.at(value), tick_text(value)
            half = 3.8 * len(text)
            if at - half > last + 8:
                self.parts.append(f'<path class="base" d="M{at:.1f} {bottom}v4"/>' + draw_text(at, bottom + 18, text))
                last = at + half
        self.parts.append(f'<path class="base" d="M{left} {bottom}H{right}"/>')
        self.parts.append(draw_text((left + right) / 2, bottom + 38, x_name))
        self.parts.append(draw_text(left - 7 if len(y_name) > 12 else left, top - 12, y_name, "start"))

    def line(self, points, colour, broken=False):
        if len(points) < 2:
            return
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4" opacity="0.75"' if broken else ""
        self.parts.append(f'<path d="M{way}" fill="none" stroke="var(--{colour})" stroke-width="2" '
                          f'stroke-linejoin="round"{dash}/>')

    def whisker(self, x, low, high, colour):
        if abs(high - low) > 0.8:
            self.parts.append(f'<path d="M{x - 3:.1f} {low:.1f}h6m-3 0V{high:.1f}m-3 0h6" fill="none" '
                              f'stroke="var(--{colour})" stroke-width="1.2"/>')

    def svg(self):
        return (f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
                f'aria-label="{escape(self.title)}">\n' + "\n".join(self.parts) + "\n</svg>\n")


def legend(entries, records=()):
    """entries: [(name, colour, mark)]; of several records also which lines are whose."""
    items = []

    def add(name, colour, more, mark=""):
        items.append(f'<li><svg viewBox="0 0 30 12" aria-hidden="true"><path d="M1 6H29" stroke="var(--{colour})" '
                     f'stroke-width="2"{more}/>{mark}</svg>{escape(name)}</li>')

    for name, colour, mark in entries:
        add(name, colour, "", draw_mark(15, 6, colour, mark))
    for i, record in enumerate(records if len(records) > 1 else ()):
        add(label_of(record), "soft", "" if i == len(records) - 1 else ' stroke-dasharray="5 4"')
    return f'<ul class="legend">{"".join(items)}</ul>\n' if items else ""


def table(head, rows):
    """Cells are text."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>\n"


def card(title, note, body, numbers="", wide=False, name=""):
    if numbers:
        numbers = f"<details><summary>Numbers</summary>{numbers}</details>\n"
    return (f'<section class="card{" wide" if wide else ""}" id="{name}"><h2>{escape(title)}</h2>\n'
            f'<p class="note">{escape(note)}</p>\n{body}{numbers}</section>\n')


# --- curves ---

# picture, title, what it says, name of x, logarithm of x and y
CURVES = [
    ("rows", "Rows in one step", "Prefill of so many tokens at once.", "rows (tokens read in one step)", 2, 0),
    ("sequences", "Sequences together", "Decode, a token of each in one step; all of them together.", "sequences", 2, 0),
    ("depth", "Cached tokens", "Decode of one sequence behind so many tokens.", "cached tokens", 0, 0),
    ("threads", "Threads", "Decode, and prefill of 512; both axes by powers.", "threads", 2, 10),
]


class Curve(typing.NamedTuple):
    series: str  # as it is told
    colour: str
    mark: str
    owner: str  # of several records; empty for one
    broken: bool
    points: list  # [(x, samples)]

    @property
    def name(self):
        return f"{self.series}, {self.owner}" if self.owner else self.series


def curves_of(records, picture):
    return [Curve(told_series(record, series), *look_of(record, series), label_of(record) if len(records) > 1 else "",
                  record is not records[-1], curve(record, picture, series))
            for record in records for series in list_series(record, picture)]


def draw_curves(records, picture, title, note, x_name, log_x, log_y):
    curves = curves_of(records, picture)
    if not curves:
        return ""
    plot = Plot(title)
    left, right, top, bottom = plot.box
    all_x = sorted({x for c in curves for x, _ in c.points})
    all_y = [v for c in curves for _, values in c.points for v in values]
    if log_y:
        all_y += [10 ** math.floor(math.log10(min(all_y))), max(all_y) * 1.2]
    x, y = Axis(all_x, (left + 8, right - 8), log_x, rounded=False), Axis(all_y, (bottom, top), log_y)
    plot.axes(x, y, x_name, "tokens/s", [v for v in all_x if not log_x or math.log2(v).is_integer()])
    for c in curves:
        places = [(x.at(at), y.at(tool.median(values))) for at, values in c.points]
        plot.line(places, c.colour, c.broken)
        for (at, values), (px, py) in zip(c.points, places):
            plot.whisker(px, y.at(min(values)), y.at(max(values)), c.colour)
            plot.parts.append(draw_mark(px, py, c.colour, c.mark, f"{c.name}, {at}: {told_spread(values)} tokens/s"))
    rows = [[f"{at}", *(told_spread(dict(c.points).get(at, [])) for c in curves)] for at in all_x]
    names = dict.fromkeys((c.series, c.colour, c.mark) for c in curves)
    return card(title, note, legend(names, records) + plot.svg(),
                table([x_name.partition(" (")[0], *(c.name for c in curves)], rows), name=picture)


# --- the roofline ---


class Point:
    """Operations, bytes and seconds of a step, and how it is shown."""

    def __init__(self, name, colour, ops, size, seconds):
        self.name, self.colour = name, colour
        self.intensity, self.gops = ops / size, ops / seconds * 1e-9


STEPS = [("decode, exact", "exact", "depth/exact/0"), ("decode, fast", "fast", "sequences/fast/1"),
         ("8 sequences, exact", "exact", "sequences/exact/8"), ("8 sequences, fast", "fast", "sequences/fast/8"),
         ("prefill 64, exact", "exact", "rows/exact/64"), ("prefill 512, exact", "exact", "rows/exact/512"),
         ("prefill 512, fast", "fast", "rows/fast/512")]


def step_points(record):
    points = []
    for name, colour, run in STEPS:
        step = {column: record.median(run, column) for column in
                ("tps", "rows", "weight_bytes", "state_bytes", "int_ops", "float_ops")}
        if None in step.values() or step["tps"] <= 0:
            continue
        size = step["weight_bytes"] + step["state_bytes"]
        if size > 0:
            points.append(Point(name, colour, step["int_ops"] + step["float_ops"], size, step["rows"] / step["tps"]))
    return points


def attention_points(record):
    """What attention to cached tokens costs, found by taking a step without them away. Only of models all of whose layers
    see all tokens, which the bytes of their state show."""
    shape = record.about.get("shape")
    shape = shape if isinstance(shape, dict) else {}
    if not all(isinstance(shape.get(key), int) for key in ("layers", "heads", "kv_heads", "head_size")):
        return []
    depths = [x for x, _ in curve(record, "depth", "exact") if x >= 1024]
    if not depths or not record.median("depth/exact/0", "tps"):
        return []
    depth = max((d for d in depths if d <= 4096), default=depths[0])
    deep, flat = f"depth/exact/{depth}", "depth/exact/0"
    size = (record.median(deep, "state_bytes") or 0) - (record.median(flat, "state_bytes") or 0)
    if abs(size / (4 * shape["layers"] * shape["kv_heads"] * shape["head_size"] * depth) - 1) > 0.02:  # f16
        return []
    ops = 4 * shape["layers"] * shape["heads"] * shape["head_size"] * depth  # of one token
    points = []
    seconds = 1 / record.median(deep, "tps") - 1 / record.median(flat, "tps")
    if seconds > 0:
        points.append(Point(f"attention of decode at {depth}", "small", ops, size, seconds))
    behind, alone = record.median(deep, "prefill_tps"), record.median("rows/exact/512", "tps")
    if behind and alone and behind < alone:
        points.append(Point(f"attention of prefill 512 at {depth}", "small", ops * 512, size, 512 / behind - 512 / alone))
    return points


def roof_over(limits, point):
    """The limit of a point: that of reading, or the flat one of its numbers."""
    flat = limits["f32_gflops"] if point.colour == "small" else limits["int8_tops"] * 1e3 or limits["f32_gflops"]
    return min(point.intensity * limits["read_gbs"], flat)


def place_labels(places, plot):
    """Numbers beside points, moved until none covers another."""
    taken = []
    for x, y in places:
        for dx, dy in ((15, -11), (15, 15), (-15, -11), (-15, 15), (0, -19), (0, 24), (28, 2), (-28, 2), (34, -24)):
            at = x + dx, y + dy
            free = all(abs(at[0] - a) > 19 or abs(at[1] - b) > 16 for a, b in taken)
            if free and all(abs(at[0] - a) > 13 or abs(at[1] - 4 - b) > 12 for a, b in places) and at[0] < plot.box[1]:
                break
        taken.append(at)
    return taken


def free_place(left, right, roof, taken):
    """The middle of the name of a roof: above or below it, from the right on, where it covers no point."""
    half = 56
    for y in (roof - 8, roof + 19):
        for x in range(int(right - half), int(left + half), -4):
            if all(abs(x - a) > half + 9 or abs(y - 4 - b) > 13 for a, b in taken):
                return x, y
    return right - half, roof - 8


def draw_roofline(records):
    record = records[-1]
    limits = {column: record.median("limits", column) or 0 for column, _ in LIMITS}
    if not limits["read_gbs"] or not limits["f32_gflops"]:
        return ""
    points = step_points(record) + attention_points(record)
    plot = Plot("Roofline", width=480, height=390, left=46, right=14)
    left, right, top, bottom = plot.box
    peak = max(limits["int8_tops"] * 1e3, limits["f32_gflops"])
    all_x = [0.5, peak / limits["read_gbs"] * 8, *(p.intensity * f for p in points for f in (0.6, 1.6))]
    all_y = [peak * 1.5, *(p.gops * 0.6 for p in points), limits["read_gbs"] * 0.6]
    x, y = Axis(all_x, (left, right), 10), Axis(all_y, (bottom, top), 10)
    plot.axes(x, y, "operations for each byte of weights and state", "10\u2079 ops/s")
    low = max(10 ** x.low, 10 ** y.low / limits["read_gbs"])
    corner = peak / limits["read_gbs"]
    x0, y0, x1, y1 = x.at(low), y.at(low * limits["read_gbs"]), x.at(corner), y.at(peak)
    plot.parts.append(f'<path class="roof" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}H{right}"/>')
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    mx, my = x0 + (x1 - x0) * 0.62, y0 + (y1 - y0) * 0.62
    plot.parts.append(draw_text(mx - 6, my - 9, f"reading: {told(limits['read_gbs'])} GB/s", "middle", "halo",
                                f' transform="rotate({angle:.1f} {mx:.1f} {my:.1f})"'))
    places = [(x.at(p.intensity), y.at(p.gops)) for p in points]
    labels = place_labels(places, plot)
    for name, height in ((f"int8: {told(limits['int8_tops'])} TOP/s", limits["int8_tops"] * 1e3),
                         (f"f32: {told(limits['f32_gflops'])} GFLOP/s", limits["f32_gflops"])):
        if height:
            at = x.at(height / limits["read_gbs"])
            plot.parts.append(f'<path class="roof" d="M{at:.1f} {y.at(height):.1f}H{right}"/>' +
                              draw_text(*free_place(at, right, y.at(height), places + labels), name, "middle", "halo"))
    marks = {"exact": "circle", "fast": "square", "small": "diamond"}
    for i, (p, (px, py), (tx, ty)) in enumerate(zip(points, places, labels)):
        plot.parts.append(draw_mark(px, py, p.colour, marks[p.colour], p.name) +
                          draw_text(tx, ty, str(i + 1), "middle", "halo", f' font-weight="600" style="fill:var(--{p.colour})"'))
    rows = [[f"{i + 1}  {p.name}", told(p.intensity), told(p.gops), told(roof_over(limits, p)),
             f"{p.gops / roof_over(limits, p):.0%}"] for i, p in enumerate(points)]
    names = [("quern exact", "exact", "circle"), ("quern fast", "fast", "square"), ("attention alone", "small", "diamond")]
    note = ("What the machine can do, and where steps are below it. Left of the corner reading bounds them, right of it "
            "computing. Weights are counted in the bytes of the model's file, attention in the floats it needs; exact "
            "multiplies 16 bits, which have half the peak of int8.")
    body = legend([n for n in names if any(p.colour == n[1] for p in points)]) + plot.svg()
    if rows:
        numbers = table(["step", "ops/B", "10\u2079 ops/s", "limit", "share"], rows)
        body = f'<div class="side"><div>{body}</div>{numbers}</div>\n'
    return card("How near the machine's limits", note, body, wide=True, name="roofline")


# --- bars: programs beside each other ---


def bar_groups(record):
    """[(test, [(series, samples)])] of what a peer was measured at too."""
    peers, groups = peers_of(record), []
    for test in TESTS:
        entries = [(series, samples_of(record, test, series)) for series in ("exact", "fast", *peers)]
        entries = [(series, values) for series, values in entries if values]
        if any(series in peers for series, _ in entries):
            groups.append((test, entries))
    return groups


def draw_peers(records):
    record = records[-1]
    groups, peers = bar_groups(record), peers_of(record)
    if not groups:
        return ""
    bar, gap, head = 20, 4, 24
    height = 34 + sum(head + len(entries) * (bar + gap) + 12 for _, entries in groups)
    plot = Plot("Other programs", height=height, left=8, right=138, top=8, bottom=30)
    left, right, _, bottom = plot.box
    base = {name: tool.median(next(values for series, values in entries if series in peers)) for name, entries in groups}
    x = Axis([max(v / base[name] for name, entries in groups for _, values in entries for v in values)], (left, right))
    for value in x.ticks():
        plot.parts.append(f'<path class="grid" d="M{x.at(value):.1f} 10V{bottom}"/>' +
                          draw_text(x.at(value), bottom + 18, f"{value:g} \u00d7", "middle" if value else "start"))
    y, rows = 10, []
    for name, entries in groups:
        plot.parts.append(draw_text(left, y + 16, name, "start", "halo", ' font-weight="600"'))
        y += head
        for series, values in entries:
            colour, middle = look_of(record, series)[0], tool.median(values)
            ends = [x.at(v / base[name]) for v in (middle, min(values), max(values))]
            plot.parts.append(f'<rect x="{left}" y="{y}" width="{ends[0] - left:.1f}" height="{bar}" rx="3" '
                              f'fill="var(--{colour})"><title>{escape(told_series(record, series))}</title></rect>')
            if ends[2] - ends[1] > 0.8:
                plot.parts.append(f'<path d="M{ends[1]:.1f} {y + 6}v{bar - 12}M{ends[1]:.1f} {y + bar / 2}H{ends[2]:.1f}m0 '
                                  f'{6 - bar / 2}v{bar - 12}" stroke="var(--ink)" stroke-width="1.2" fill="none"/>')
            text = f"{told(middle)} tokens/s" + ("" if series in peers[:1] else f", {middle / base[name]:.2f} \u00d7")
            plot.parts.append(draw_text(max(ends[0], ends[2]) + 7, y + 15, text, "start", "halo"))
            rows.append([name, told_series(record, series), told_spread(values), f"{middle / base[name]:.2f}"])
            y += bar + gap
        y += 12
    names = [(told_series(record, s), *look_of(record, s)) for s in
             dict.fromkeys(s for _, entries in groups for s, _ in entries)]
    first = next(s for s in peers if any(s == series for _, entries in groups for series, _ in entries))
    return card("Beside others", f"The same file, measured in turn. Bars are times {first}, whiskers minimum and maximum.",
                legend(names) + plot.svg(), table(["test", "program", "tokens/s", f"times {first}"], rows), name="peers")


# --- errors beside speed ---


def error_points(record, test):
    """[(series, error, samples of speed)]"""
    found = []
    for series in list_series(record, "error"):
        error, values = record.median(f"error/{series}/0", "error"), samples_of(record, test, series)
        if error and error > 0 and values:
            found.append((series, error, values))
    return found


def draw_error(record, test):
    points = error_points(record, test)
    if not points:
        return ""
    plot = Plot(f"Error of logits beside {test}", height=280, left=58)
    left, right, top, bottom = plot.box
    errors = [e for _, e, _ in points]
    y = Axis([10 ** math.floor(math.log10(min(errors) * 0.8)), 10 ** math.ceil(math.log10(max(errors) * 1.25))], (bottom, top), 10)
    x = Axis([max(v for *_, values in points for v in values) * 1.05], (left, right))
    plot.axes(x, y, f"tokens/s, {test}", "relative error of logits", y_text=lambda v: f"{v:g}")
    plot.parts.append(draw_text(left + 8, bottom - 9, "faster and nearer: \u2198", "start", "axis"))
    for series, error, values in points:
        colour, mark = look_of(record, series)
        px, py, name = x.at(tool.median(values)), y.at(error), told_series(record, series)
        plot.parts.append(f'<path d="M{x.at(min(values)):.1f} {py:.1f}H{x.at(max(values)):.1f}" stroke="var(--{colour})" '
                          'stroke-width="1.4"/>' + draw_mark(px, py, colour, mark, name))
        at_left = px > (left + right) / 2
        plot.parts.append(draw_text(px + (-10 if at_left else 10), py - 8, f"{name}: {told_error(error)}",
                                    "end" if at_left else "start", "halo", f' style="fill:var(--{colour})"'))
    return plot.svg()


def draw_errors(records):
    record = records[-1]
    body = draw_error(record, "prefill 512") + draw_error(record, "decode")
    if not body:
        return ""
    rows = [[told_series(record, series), told_error(error), told_spread(values)]
            for series, error, values in error_points(record, "prefill 512")]
    return card("Error beside speed", "How far logits are from those of the same weights in float32 (root mean square, "
                "relative). Lower is nearer, right is faster; both at once is what Quern is for.", body,
                table(["program", "error", "prefill 512, tokens/s"], rows), name="error")


# --- several records ---


def draw_changes(records):
    """The last against the first: ratios of medians of all that both have."""
    if len(records) < 2:
        return ""
    first, last = records[0], records[-1]
    rows = []
    for picture, _, _, x_name, *_ in CURVES:
        for series in list_series(last, picture):
            before = dict(curve(first, picture, series))
            for x, values in curve(last, picture, series):
                if x in before:
                    ratio = tool.median(values) / tool.median(before[x])
                    rows.append([f"{x_name.partition(' (')[0]} {x}", told_series(last, series), told_spread(before[x]),
                                 told_spread(values), f"{ratio:.2f}"])
    if not rows:
        return ""
    return card("What changed", f"Tokens/s of {label_of(first)} (broken lines) and {label_of(last)} (full lines); ratios of "
                "medians, above 1 is faster.", table(["", "program", label_of(first), label_of(last), "ratio"], rows),
                wide=True, name="changes")


# --- the page ---


def draw_tiles(record):
    tiles = []

    def add(value, text):
        tiles.append(f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>')

    decode, prefill = (tool.median(samples_of(record, test, "exact")) for test in ("decode", "prefill 512"))
    if decode:
        add(told(decode), "tokens/s decode, exact")
    if prefill:
        add(told(prefill), "tokens/s prefill 512, exact")
    error = record.median("error/exact/0", "error")
    if error:
        add(told_error(error), "error of logits, exact")
    for peer in peers_of(record)[:1]:
        theirs = [tool.median(samples_of(record, test, peer)) for test in ("decode", "prefill 512")]
        if all((*theirs, decode, prefill)):
            add(f"{decode / theirs[0]:.1f} \u00d7, {prefill / theirs[1]:.1f} \u00d7", f"{peer}: decode, prefill, exact")
        wrong = record.median(f"error/{peer}/0", "error")
        if wrong and error:
            add(f"1/{wrong / error:.0f}", f"of the error of {peer}")
    return f'<div class="tiles">{"".join(tiles)}</div>\n' if tiles else ""


def draw_how(records):
    rows = []
    for record in records:
        about = record.about
        machine = about.get("machine") if isinstance(about.get("machine"), dict) else {}
        most = max((record.count(name) for name in record.runs), default=0)
        limits = ", ".join(f"{told_spread(record.values('limits', c))} {unit}" for c, unit in LIMITS
                           if record.values("limits", c))
        facts = [("label", label_of(record)), ("machine", f"{machine.get('cpu')} ({machine.get('family')})"),
                 ("cores, threads used", f"{machine.get('cores')}, {about.get('threads')}"),
                 ("CPU level", about.get("level")), ("memory", f"{machine.get('memory_gib')} GiB"),
                 ("kernel", machine.get("kernel")), ("limits, median (least to most)", limits), ("date", about.get("date")),
                 ("Quern", f"{about.get('version')}, commit {about.get('commit') or 'unknown'}, {about.get('compiler')}"),
                 ("others", ", ".join(peers_of(record)) or "none"),
                 ("model", f"{about.get('model')}, {about.get('bytes')} bytes"),
                 ("rounds", f"{most}; runs in turn, every other round backwards"), ("command", about.get("command"))]
        body = "\n".join(f'<tr><td>{escape(key)}</td><td class="text">'
                         f'{"<code>" * (key == "command")}{escape(value)}{"</code>" * (key == "command")}</td></tr>'
                         for key, value in facts)
        rows.append(f"<table>{body}</table>\n")
    note = ("Points are medians, whiskers minimum and maximum. Speeds of different machines, or of one machine at different "
            "hours, cannot be compared; shares and ratios of one run can.")
    return card("How it was measured", note, "".join(rows), wide=True, name="how")


def render(records):
    about = records[-1].about
    machine = about.get("machine") if isinstance(about.get("machine"), dict) else {}
    title = f"Speed of Quern: {about.get('model')}"
    pictures = [draw_roofline(records), *(draw_curves(records, *row) for row in CURVES), draw_peers(records),
                draw_errors(records), draw_changes(records), draw_how(records)]
    return ('<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n<meta charset="utf-8"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            '<meta name="color-scheme" content="light dark"/>\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
            f'<p class="soft">{escape(machine.get("cpu"))}, {escape(about.get("threads"))} threads, '
            f'{escape(about.get("level") or "level unknown")}, {escape(about.get("date"))}</p>\n{draw_tiles(records[-1])}'
            f'<div class="cards">\n{"".join(pictures)}</div>\n</main>\n</body>\n</html>\n')


def write(path, records):
    try:
        pathlib.Path(path).write_text(render(records), encoding="utf-8")
    except OSError as error:
        tool.fail(f"{path}: {error.strerror}")
