"""Draws docs/demo.svg from a real run: `shoal demo --json | python docs/picture.py`.

One box per daemon with the layers it held, the hops between them with the measured time, and the
text that came out. Nothing in the picture is typed in by hand.
"""

import json
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import Any

WIDTH, BOX, GAP, TOP, HIGH = 960, 200, 60, 96, 96
INK, SOFT, LINE, FILL, PAPER = "#1b2a34", "#5b7280", "#2f7f9b", "#e6f2f6", "#ffffff"


def text(x: float, y: float, content: str, size: int = 15, **style: str) -> str:
    """One line of text; `style` are SVG attributes with `_` for `-`."""
    attributes = {"fill": INK, **{key.replace("_", "-"): value for key, value in style.items()}}
    written = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f'<text x="{x}" y="{y}" font-size="{size}" {written}>{escape(content)}</text>'


def box(x: float, node: dict[str, Any], number: int) -> list[str]:
    peer = str(node["peer"])
    middle = x + BOX / 2
    return [
        f'<rect x="{x}" y="{TOP}" width="{BOX}" height="{HIGH}" rx="12" fill="{FILL}" '
        f'stroke="{LINE}" stroke-width="2"/>',
        text(middle, TOP + 32, f"node {number}", 17, text_anchor="middle", font_weight="600"),
        text(middle, TOP + 56, f"layers {node['layers']}", 15, text_anchor="middle"),
        text(middle, TOP + 78, f"{peer[:6]}…{peer[-6:]}", 12, text_anchor="middle", fill=SOFT),
    ]


def arrow(x: float, hop_ms: float) -> list[str]:
    y = TOP + HIGH / 2
    return [
        f'<line x1="{x + 4}" y1="{y}" x2="{x + GAP - 10}" y2="{y}" stroke="{LINE}" '
        f'stroke-width="2" marker-end="url(#head)"/>',
        text(x + GAP / 2, y - 10, f"{hop_ms:.1f} ms", 12, text_anchor="middle", fill=SOFT),
    ]


def draw(run: dict[str, Any]) -> str:
    nodes = run["nodes"]
    width = max(WIDTH, 40 + len(nodes) * (BOX + GAP))
    left = (width - len(nodes) * BOX - (len(nodes) - 1) * GAP) / 2
    lines = textwrap.wrap(" ".join(f"{run['prompt']}{run['text']}".split()) + " …", 92)[:6]
    height = TOP + HIGH + 84 + 24 * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif" role="img">',
        f"<title>{len(nodes)} shoal daemons answer one prompt together</title>",
        f'<defs><marker id="head" markerWidth="9" markerHeight="9" refX="6" refY="4.5" '
        f'orient="auto"><path d="M0 0 L8 4.5 L0 9 z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        text(width / 2, 40, "make demo", 22, text_anchor="middle", font_weight="600"),
        text(
            width / 2,
            66,
            f"first token {run['ttft_ms']:.0f} ms · {run['tokens_per_s']:.0f} tokens/s · "
            f"{run['hop_ms']:.1f} ms a hop",
            14,
            text_anchor="middle",
            fill=SOFT,
        ),
    ]
    for number, node in enumerate(nodes):
        x = left + number * (BOX + GAP)
        parts += box(x, node, number + 1)
        if number + 1 < len(nodes):
            parts += arrow(x + BOX, float(run["hop_ms"]))
    for number, line in enumerate(lines):
        parts.append(
            text(width / 2, TOP + HIGH + 54 + 24 * number, line, 16, text_anchor="middle",
                 font_family="Georgia, serif")
        )  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    run = json.loads(sys.stdin.read().strip().splitlines()[-1])
    Path(__file__).with_name("demo.svg").write_text(draw(run))


if __name__ == "__main__":
    main()
