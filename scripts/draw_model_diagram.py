"""Draw the diagram of docs/models.md: `python scripts/draw_model_diagram.py`.

The same drawing comes out every time, so a test can compare it with the file.
"""

from pathlib import Path

from mtdinterp.pages.svg.elements import text
from mtdinterp.style import FAINT, INK

TARGET = Path(__file__).parent.parent / "docs" / "images" / "models.svg"
WIDTH = 960
HEIGHT = 610
BAR = 30
"""Height of a stream bar."""
STEP = 132
"""From one stream bar to the next."""
TOP = 92
TOKEN_FILL = "#dbe4fb"
LAG_FILL = "#fde3cf"
SOFT = "#6b7280"
LEFT = 24
RIGHT = 566
RIGHT_WIDTH = 370


def _rectangle(x: float, y: float, width: float, fill: str, height: float = BAR) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        f'stroke="{INK}" stroke-width="1"/>'
    )


def _arrow(x: float, top: float, bottom: float) -> str:
    return (
        f'<path d="M{x:g} {top:g}V{bottom - 7:g}" stroke="{SOFT}" stroke-width="1.5" fill="none"/>'
        f'<path d="M{x - 4:g} {bottom - 8:g}h8l-4 8z" fill="{SOFT}"/>'
    )


def _segments(x: float, y: float, blocks: list[tuple[str, float]]) -> list[str]:
    """A stream bar: named blocks side by side; lag blocks have their own colour."""
    parts = []
    for name, width in blocks:
        fill = LAG_FILL if name.endswith("lag") else TOKEN_FILL
        parts.append(_rectangle(x, y, width, fill))
        parts.append(text(x + width / 2, y + 19, name, "middle", 11))
        x += width
    return parts


def _layer_box(x: float, y: float, width: float, lines: list[str]) -> list[str]:
    """A layer between two stream bars."""
    height = 18 * len(lines) + 14
    box = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="#ffffff" '
        f'stroke="{FAINT}" stroke-width="1.5"/>'
    )
    first, *rest = lines
    parts = [box, text(x + 12, y + 20, first, size=12, weight="bold")]
    for number, line in enumerate(rest, start=1):
        parts.append(text(x + 12, y + 20 + 18 * number, line, size=12))
    return parts


def disentangled() -> list[str]:
    """The left half: a stream that grows."""
    after_one = [("token", 60.0), ("L1.token", 68.0), ("L1.lag", 56.0)]
    after_two = [
        *after_one,
        ("L2.token", 68.0),
        ("L2.L1.token", 84.0),
        ("L2.L1.lag", 72.0),
        ("L2.lag", 56.0),
    ]
    after_three = [("the same seven blocks", 232.0), ("L3. and each of them", 176.0)]
    after_three.append(("L3.lag", 56.0))
    bars = [[("token", 60.0)], after_one, after_two, after_three]
    parts = [
        text(LEFT, 30, "Disentangled transformer", size=17, weight="bold"),
        text(LEFT, 52, "each head appends to the stream", fill=SOFT),
        text(LEFT + 70, TOP + 19, "h⁰ = one-hot tokens   (hook_embed)"),
    ]
    for number, blocks in enumerate(bars):
        y = TOP + number * STEP
        parts += _segments(LEFT, y, blocks)
        if number == len(bars) - 1:
            break
        parts.append(_arrow(LEFT + 30, y + BAR, y + STEP))
        lines = [
            f"layer {number + 1}   (blocks.{number})",
            "score = h_i·W_A·h_j + h_i·R_A[i-j],   A = causal softmax",
            "append Σ_j A[i,j]·(h_j, R_V[i-j])",
        ]
        parts += _layer_box(LEFT + 52, y + BAR + 18, 412, lines)
    bottom = TOP + 3 * STEP + BAR
    parts.append(_arrow(LEFT + 30, bottom, bottom + 38))
    parts.append(text(LEFT + 46, bottom + 24, "· W_U"))
    parts.append(text(LEFT, bottom + 56, "output [pos, vocab]: no softmax", weight="bold"))
    return parts


def standard() -> list[str]:
    """The right half: a stream of constant width."""
    names = ["x⁰ = W_E[tokens]   (hook_embed)", "x¹", "x²", "x³"]
    parts = [
        text(RIGHT, 30, "Standard transformer", size=17, weight="bold"),
        text(RIGHT, 52, "each head adds to the stream", fill=SOFT),
    ]
    for number, name in enumerate(names):
        y = TOP + number * STEP
        parts.append(_rectangle(RIGHT, y, RIGHT_WIDTH, TOKEN_FILL))
        parts.append(text(RIGHT + RIGHT_WIDTH / 2, y + 19, name, "middle", 12))
        if number == len(names) - 1:
            break
        parts.append(_arrow(RIGHT + 30, y + BAR, y + STEP))
        lines = [
            f"layer {number + 1}   (blocks.{number})",
            "score = q_i·(k_j + R_K[i-j]) / √d_head",
            "add Σ_j A[i,j]·(v_j + R_V[i-j])·W_O",
        ]
        parts += _layer_box(RIGHT + 52, y + BAR + 18, RIGHT_WIDTH - 52, lines)
    bottom = TOP + 3 * STEP + BAR
    parts.append(_arrow(RIGHT + 30, bottom, bottom + 38))
    parts.append(text(RIGHT + 46, bottom + 24, "· W_U"))
    parts.append(text(RIGHT, bottom + 56, "output [pos, vocab]: no softmax", weight="bold"))
    return parts


def draw() -> str:
    """The SVG file."""
    divider = f'<path d="M{RIGHT - 39} 20V{HEIGHT - 20}" stroke="{FAINT}" stroke-width="1"/>'
    legend = [
        _rectangle(LEFT + 300, 18, 14, TOKEN_FILL, 14),
        text(LEFT + 320, 30, "tokens, or averages of them"),
        _rectangle(LEFT + 300, 40, 14, LAG_FILL, 14),
        text(LEFT + 320, 52, "what R_V gives: the lags"),
    ]
    body = "\n".join([*disentangled(), *legend, divider, *standard()])
    label = "Forward pass of both architectures, from tokens to outputs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="system-ui, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    """Write the file."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(draw())


if __name__ == "__main__":
    main()
