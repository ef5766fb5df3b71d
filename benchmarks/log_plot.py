# SPDX-License-Identifier: Apache-2.0
"""A plot with two logarithmic axes as the text of an SVG file."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 500
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 70, 70


class _Axis:
    """Places values between two ends, by their logarithm."""

    def __init__(self, values, base, begin, end):
        self.base, self.begin, self.end = base, begin, end
        self.low = math.floor(round(math.log(min(values), base), 9))
        self.high = max(math.ceil(round(math.log(max(values), base), 9)), self.low + 1)

    def place(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self, most):
        """Return whole powers of the base, no more than that many."""
        step = -(-(self.high - self.low + 1) // most)
        return [self.base**power for power in range(self.low, self.high + 1, step)]


def _text(x, y, text, anchor="middle", size=13, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{extra}>{escape(text)}</text>'


def _line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def log_plot(title, subtitle, x_axis, y_axis, series):
    """Return the plot.

    Parameters
    ----------
    title, subtitle : str
        What is above it.
    x_axis, y_axis : tuple
        What is measured, and a function that says a value in words. Ticks are powers of 2 and of 10.
    series : list of tuple
        Name, colour, whether it is dashed, and points: x, lower quartile, median, upper quartile.
    """
    series = [each for each in series if each[3]]
    if not series:
        raise ValueError(f"there is nothing to draw for {title!r}")
    points = [point for *_, some in series for point in some]
    x = _Axis([point[0] for point in points], 2, LEFT, WIDTH - RIGHT)
    y = _Axis([value for point in points for value in point[1:]], 10, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(WIDTH / 2, 26, title, size=17),
        _text(WIDTH / 2, 47, subtitle, size=11, extra=' fill="#666666"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, x_axis[0]),
        _text(20, HEIGHT / 2, y_axis[0], extra=f' transform="rotate(-90 20 {HEIGHT / 2:.0f})"'),
    ]
    for value in x.ticks(9):
        at = x.place(value)
        parts += [_line(at, TOP, at, HEIGHT - BOTTOM, 'stroke="#e4e4e4"')]
        parts += [_text(at, HEIGHT - BOTTOM + 20, x_axis[1](value), size=12)]
    for value in y.ticks(9):
        at = y.place(value)
        parts += [_line(LEFT, at, WIDTH - RIGHT, at, 'stroke="#e4e4e4"')]
        parts += [_text(LEFT - 8, at + 4, y_axis[1](value), "end", 12)]
    for number, (name, colour, dashed, some) in enumerate(series):
        stroke = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="6 4"' if dashed else "")
        along = " ".join(f"{x.place(point[0]):.1f},{y.place(point[2]):.1f}" for point in some)
        parts += [f'<polyline points="{along}" fill="none" {stroke}/>']
        for at, low, middle, high in some:
            parts += [_line(x.place(at), y.place(low), x.place(at), y.place(high), f'stroke="{colour}"')]
            parts += [f'<circle cx="{x.place(at):.1f}" cy="{y.place(middle):.1f}" r="3" fill="{colour}"/>']
        below = TOP + 18 + 20 * number
        parts += [_line(LEFT + 14, below - 4, LEFT + 44, below - 4, stroke)]
        parts += [_text(LEFT + 52, below, name, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"
