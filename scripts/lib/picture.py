# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a training run that was resized, or that lost a machine: both loss curves with what happened
marked, how far they are apart, and how long training stood still and for what. Inline SVG, no script, no font or file from
elsewhere."""
import html
import math

WIDTH, LEFT, RIGHT = 900, 64, 20
PARTS = [("stop", "wait for the boundary"), ("copy", "copy out"), ("commit", "commit"), ("end", "end of old ranks"),
         ("build", "start and build"), ("move", "move"), ("restore", "restore"), ("first_step", "first step")]
LOSS_PARTS = [("detected", "node seen to be gone"), ("decided", "decide"), ("started", "start and build"), ("first_step", "first step")]
STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #6e7781; --line: #d0d7de; --paper: #ffffff; --ours: #0969da;
  --mark: #bc4c00; --p0: #54aeff; --p1: #0969da; --p2: #8250df; --p3: #bf8700; --p4: #2da44e; --p5: #1b7c83; --p6: #cf222e; --p7: #8c959f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #8d96a0; --line: #30363d; --paper: #0d1117; --ours: #58a6ff;
  --mark: #f0883e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 940px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; } p { color: var(--soft); margin: .2rem 0 .6rem; }
svg { width: 100%; height: auto; display: block; } text { fill: var(--soft); font-size: 12px; } .strong { fill: var(--ink); }
.axis { stroke: var(--line); } .ours { fill: none; stroke: var(--ours); stroke-width: 2; } .theirs { fill: var(--ink); } .apart { fill: var(--ours); }
.mark { stroke: var(--mark); stroke-dasharray: 4 3; } .marked { fill: var(--mark); } .limit { stroke: var(--soft); stroke-dasharray: 2 4; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } th, td { text-align: right; padding: .25rem .5rem;
  border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 600; } th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
"""


class Scale:
    """Maps low..high to pixels from..to; logarithmic if asked."""

    def __init__(self, low, high, start, end, log=False):
        self.f = math.log10 if log else float
        self.low, self.span = self.f(low), (self.f(high) - self.f(low)) or 1.0
        self.start, self.end = start, end

    def __call__(self, value):
        return round(self.start + (self.f(value) - self.low) / self.span * (self.end - self.start), 1)


def ticks(low, high, count=5):
    """Round numbers between low and high."""
    step = 10 ** math.floor(math.log10((high - low) / count or 1))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= count)
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step) + 1)]


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{html.escape(str(words))}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


def svg(height, parts, label):
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'


def draw_marks(x, marks, top, bottom, named):
    out = []
    for i, (step, words) in enumerate(marks):
        out.append(line(x(step), top, x(step), bottom, "mark"))
        if named:
            side = ("start", 4) if x(step) < 0.7 * WIDTH else ("end", -4) # inside the picture
            out.append(text(x(step) + side[1], top + 12 + 14 * (i % 2), words, side[0], "marked"))
    return out


def losses(reference, found, marks):
    top, bottom = 10, 300
    values = [s["loss"] for s in [*reference.values(), *found.values()]]
    x = Scale(0, max(reference), LEFT, WIDTH - RIGHT)
    y = Scale(min(values), max(values), bottom, top + 40)
    out = [line(LEFT, y(t), WIDTH - RIGHT, y(t), "axis") + text(LEFT - 8, y(t) + 4, f"{t:g}", "end")
           for t in ticks(min(values), max(values))]
    out += [text(x(t), bottom + 18, f"{t:g}", "middle") for t in ticks(0, max(reference), 10)]
    out += draw_marks(x, marks, top, bottom, True)
    points = " ".join(f'{x(n)},{y(s["loss"])}' for n, s in sorted(found.items()))
    out.append(f'<polyline points="{points}" class="ours"/>')
    out += [f'<circle cx="{x(n)}" cy="{y(s["loss"])}" r="2" class="theirs"/>' for n, s in sorted(reference.items())]
    return svg(bottom + 26, out, "loss of both runs by step")


def apart(reference, found, marks, tolerance):
    top, bottom = 10, 130
    least = 1e-17 # equal losses are drawn here
    gaps = {n: max(least, abs(found[n]["loss"] - s["loss"]) / abs(s["loss"])) for n, s in reference.items()}
    x = Scale(0, max(reference), LEFT, WIDTH - RIGHT)
    y = Scale(least, max(tolerance, *gaps.values()) * 10, bottom, top, log=True)
    out = [line(LEFT, y(t), WIDTH - RIGHT, y(t), "axis") + text(LEFT - 8, y(t) + 4, f"{t:.0e}", "end") for t in (1e-16, 1e-12, 1e-8)
           if t < tolerance * 10]
    out += [line(LEFT, y(tolerance), WIDTH - RIGHT, y(tolerance), "limit"),
            text(WIDTH - RIGHT, y(tolerance) - 4, f"rounding explains {tolerance:g}", "end")]
    out += draw_marks(x, marks, top, bottom, False)
    out += [f'<circle cx="{x(n)}" cy="{y(g)}" r="2" class="apart"/>' for n, g in gaps.items()]
    return svg(bottom + 10, out, "relative difference of the losses by step")


def pauses(rows, parts):
    """rows: (name, {part: ms}, ms in all); parts: (part, words)."""
    row, left = 34, 230
    x = Scale(0, max(total for _, _, total in rows) or 1, left, WIDTH - 90)
    out = []
    for i, (name, took, total) in enumerate(rows):
        at, y = 0.0, 8 + row * i
        out.append(text(left - 10, y + 15, name, "end", "strong"))
        for k, (key, words) in enumerate(parts):
            ms = took.get(key) or 0
            out.append(f'<rect x="{x(at)}" y="{y}" width="{max(0, round(x(at + ms) - x(at), 1))}" height="20" style="fill:var(--p{k})">'
                       f"<title>{html.escape(words)}: {ms:.0f} ms</title></rect>")
            at += ms
        out.append(text(x(at) + 6, y + 15, f"{total / 1000:.2f} s", kind="strong"))
    y = 8 + row * len(rows) + 10
    for k, (_, words) in enumerate(parts):
        cx, cy = left + (k % 4) * 160, y + 18 * (k // 4)
        out += [f'<rect x="{cx}" y="{cy}" width="11" height="11" style="fill:var(--p{k})"/>', text(cx + 16, cy + 10, words)]
    return svg(y + 40, out, "how long training stood still, by part")


def table(switches):
    rows = []
    for s in switches:
        t = s["plan"]["totals"]
        cells = [s["from"], s["to"], s["step"], f'{t["between_nodes"] / 1e6:.1f}',
                 ("" if t["bound_exact"] else "≥ ") + f'{t["bound_any_mapping"] / 1e6:.1f}', f'{t["within_node"] / 1e6:.1f}',
                 s["digests_verified"]]
        rows.append("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>")
    head = ("from", "to", "step", "MB between nodes", "least possible", "MB within nodes", "digests verified")
    return f'<table><tr>{"".join(f"<th>{h}</th>" for h in head)}</tr>{"".join(rows)}</table>'


def both(title, sentence, reference, found, marks, tolerance, rest):
    """A page that begins with both curves; reference, found: step -> {"loss"} as curve.read gives them; marks: (step, words)."""
    worst = max(abs(found[n]["loss"] - s["loss"]) / abs(s["loss"]) for n, s in reference.items())
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>ptc: {html.escape(title)}</title><style>{STYLE}</style></head><body>", f"<h1>{html.escape(title)}</h1>",
        f"<p>{len(reference)} steps, {html.escape(sentence)}. Losses are at most {worst:.1e} apart from those of one process that "
        f"never heard of ptc.</p>",
        "<h2>Loss</h2>", "<p>Line: the job. Dots: the uninterrupted run. Dashed: what happened to the job.</p>",
        losses(reference, found, marks),
        "<h2>How far they are apart</h2>", "<p>Relative difference of the losses, on a logarithmic scale.</p>",
        apart(reference, found, marks, tolerance), "<h2>How long training stood still</h2>", *rest, "</body></html>", ""])


def page(reference, found, switches, tolerance):
    """A run that was resized; switches: summaries of resizes. Returns the page's text."""
    rows = [(f'{s["from"]} → {s["to"]}', {key: s["pause"].get(f"{key}_ms") for key, _ in PARTS}, s["pause"]["total_ms"])
            for s in switches]
    marks = [(s["step"], name) for s, (name, _, _) in zip(switches, rows)]
    return both("A GPT resized while it trains", f"{len(switches)} switches", reference, found, marks, tolerance,
                [pauses(rows, PARTS), "<h2>Bytes that each switch moved</h2>", table(switches)])


def loss_page(reference, found, lost, tolerance):
    """A run that lost a node: {"node", "reached", "begun" (steps), "from", "to", "parts": {part of LOSS_PARTS: ms}}."""
    marks = [(lost["begun"], f'goes on: {lost["to"]}'), (lost["reached"], f'node {lost["node"]} killed')]
    rows = [(f'{lost["from"]} → {lost["to"]}', lost["parts"], sum(lost["parts"].values()))]
    sentence = f'a node killed at step {lost["reached"]}, {lost["reached"] - lost["begun"]} steps done again'
    return both("A GPT that loses a machine while it trains", sentence, reference, found, marks, tolerance,
                [pauses(rows, LOSS_PARTS)])
