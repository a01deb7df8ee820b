"""Make the README's pictures: a run's reward curve, one of its trajectories in the viewer, and
the last curve that the committed notebook 04 drew.

    python scripts/make_pictures.py runs/demo/grpo                  # into docs/images
    python scripts/make_pictures.py runs/demo/grpo --key train:248  # of that question

The trajectory is a right one of the run's trajectories.jsonl; one whose first call failed and that
mended it is preferred, then the one with the most calls. Needs Chromium on the path.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nl2sql_trl.display import reward_curve
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.viewer import show_row

ROOT = Path(__file__).resolve().parents[1]
IMAGES, LIVE = ROOT / "docs" / "images", ROOT / "notebooks" / "04_train_live.ipynb"
WIDTH, SCALE = 800, 1.5
PAGE = '<!doctype html><meta charset="utf-8"><body style="margin:12px;font-family:sans-serif">'


def main() -> int:
    """Write all three pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory of train.py")
    parser.add_argument("--key", help="show a trajectory of this question, such as train:248")
    parser.add_argument("--out", type=Path, default=IMAGES, help="where to (default: docs/images)")
    arguments = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        print("there is no chromium on the path: install it to draw the viewer", file=sys.stderr)
        return 2
    rows = read_jsonl(arguments.run / "trajectories.jsonl")
    row = choose(rows, arguments.key)
    if row is None:
        where = f"{arguments.run}/trajectories.jsonl"
        print(f"{where} has no right trajectory that calls the tool: try another", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    curve, viewer = arguments.out / "reward_curve.png", arguments.out / "viewer.png"
    title = "/".join(arguments.run.parts[-2:])
    reward_curve(arguments.run, title=title).savefig(curve, dpi=110)
    photograph(show_row(row).html, viewer, browser)
    live = arguments.out / "live_curve.png"
    live.write_bytes(last_drawn(LIVE))
    for path in (curve, viewer, live):
        shrink(path)
        print(f"wrote {path} ({path.stat().st_size // 1000} kB)")
    return 0


def choose(rows: list[dict[str, Any]], key: str | None) -> dict[str, Any] | None:
    """The most telling right row (of a question, if a key is given); None if there is none."""

    def responses(row: dict[str, Any]) -> list[str]:
        return [
            c["response"] for turn in row["turns"] if turn["role"] == "tool" for c in turn["calls"]
        ]

    right = [r for r in rows if r["correct"] and responses(r) and key in (None, r["key"])]

    def worth(row: dict[str, Any]) -> tuple[bool, int]:
        found = responses(row)
        return found[0].startswith('{"error"'), len(found)

    return max(right, key=worth, default=None)


def photograph(html: str, path: Path, browser: str) -> None:
    """Write what the browser makes of some HTML, cut to what is drawn."""
    from PIL import Image, ImageChops

    with tempfile.TemporaryDirectory() as work:
        page, raw = Path(work) / "page.html", Path(work) / "page.png"
        page.write_text(PAGE + html, encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--user-data-dir={work}/profile", f"--force-device-scale-factor={SCALE}"]
        flags += [f"--window-size={WIDTH},4000", f"--screenshot={raw}"]
        subprocess.run([browser, *flags, page.as_uri()], check=True, capture_output=True)
        whole = Image.open(io.BytesIO(raw.read_bytes())).convert("RGB")
    drawn = ImageChops.difference(whole, Image.new("RGB", whole.size, "white")).getbbox()
    assert drawn is not None, "the page stayed white"
    whole.crop((0, 0, whole.width, drawn[3] + drawn[1])).save(path)


def last_drawn(notebook: Path) -> bytes:
    """The last picture that a cell of a notebook drew while it ran."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    drawn = [
        o["data"] for c in cells for o in c.get("outputs", []) if o["output_type"] == "display_data"
    ]
    return base64.b64decode([data["image/png"] for data in drawn if "image/png" in data][-1])


def shrink(path: Path) -> None:
    """Write a picture with a palette of its own: a third of the bytes, and no eye sees it."""
    from PIL import Image

    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
