"""Charts as inline SVG, in the colors of the page's classes: bars with intervals, and the reliability diagram."""

from __future__ import annotations

from math import sqrt

from dragoman.reports.calibration import Calibration

SIDE, LEFT, TOP, BOTTOM = 260.0, 44.0, 8.0, 44.0  # of the reliability diagram and its margins
MIN_RADIUS, MAX_RADIUS = 3.0, 13.0


def interval_bar(value: float, low: float, high: float, most: float, label: str) -> str:
    """A horizontal bar from 0 to `value` with a line from `low` to `high`, on a track that ends at `most`."""

    def at(x: float) -> str:
        return f"{100 * min(max(x, 0.0), most) / most:.2f}" if most > 0 else "0"

    return (
        f'<svg class="strip" viewBox="0 0 100 14" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<rect class="track" width="100" height="14"/><rect class="fill" width="{at(value)}" height="14"/>'
        f'<line class="whisker" x1="{at(low)}" x2="{at(high)}" y1="7" y2="7"/>'
        f'<line class="whisker" x1="{at(value)}" x2="{at(value)}" y1="2" y2="12"/></svg>'
    )


def share_bar(share: float, label: str) -> str:
    """A horizontal bar that fills a share of its track."""
    return (
        f'<svg class="strip" viewBox="0 0 100 14" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<rect class="track" width="100" height="14"/><rect class="fill" width="{100 * share:.2f}" height="14"/></svg>'
    )


def reliability_diagram(calibration: Calibration) -> str:
    """The share of right outputs against their probability, a dot for each bin, larger for more outputs."""

    def point(probability: float, right: float) -> tuple[str, str]:
        return f"{LEFT + SIDE * probability:.1f}", f"{TOP + SIDE * (1 - right):.1f}"

    total = max(each.count for each in calibration.bins)
    centers = [(each, *point(each.probability, each.right)) for each in calibration.bins]
    path = " ".join(f"{x},{y}" for _, x, y in centers)
    dots = "".join(
        f'<circle class="mark" cx="{x}" cy="{y}" '
        f'r="{max(MIN_RADIUS, MAX_RADIUS * sqrt(each.count / total)):.1f}" fill-opacity="0.8">'
        f"<title>{each.count:,} outputs: probability {100 * each.probability:.0f} %, "
        f"{100 * each.right:.0f} % right</title></circle>"
        for each, x, y in centers
    )
    ticks = "".join(
        f'<text class="middle" x="{point(share, 0)[0]}" y="{TOP + SIDE + 18}">{100 * share:.0f}</text>'
        f'<text class="end" x="{LEFT - 8}" y="{float(point(0, share)[1]) + 4:.1f}">{100 * share:.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    (x1, y1), (x2, y2) = point(0, 0), point(1, 1)
    width, height = LEFT + SIDE + 16, TOP + SIDE + BOTTOM
    middle = TOP + SIDE / 2
    return (
        f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'aria-label="share of right outputs against their probability">'
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>'
        f'<line class="ideal" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
        f'<polyline class="curve" points="{path}"/>{dots}{ticks}'
        f'<text class="middle" x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 38}">probability of the output, %</text>'
        f'<text class="middle" transform="translate(12 {middle}) rotate(-90)">right, %</text></svg>'
    )
