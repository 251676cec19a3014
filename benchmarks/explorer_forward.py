"""How long the explorer's page takes for a forward pass after a drag.

    python benchmarks/explorer_forward.py --out benchmarks/results

The network of sort, n = 2, K = 128 (66,051 blocks) runs in chromium, first whole, to be
compared with `network(x)`; then with its value map cut or repeated to 1,000, 10,000 and
100,000 blocks. `run` is the executor with all that it keeps for the scrubber, `update` all
that the page does after a token has moved, up to what the browser then draws. `frame` is a
drag with the mouse: all work of the page's thread for each frame, drawing included, as CPU
time, which other programs on the machine do not lengthen.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

import everyformer as ef
from everyformer.bench.results import environment, write
from everyformer.cli import tables
from everyformer.explore.show import network_page

COUNTS = (1_000, 10_000, 100_000)
REPEATS = 21
GRID = 128
WAIT = 5000
"""Milliseconds until the heat maps are drawn."""

TIMES = """async ([count, repeats]) => {
  const { session, store } = everyformer;
  const whole = everyformer.whole ||= session.original;
  const table = whole.stages.findIndex(stage => stage.kind === "value map");
  const others = whole.blocks - whole.stages[table].blocks
    - whole.stages[table - 1].blocks;
  const each = Math.floor((count - others) / 2);
  const sized = (stage, length) => length < 0 ? { ...stage, order: [] }
    : { ...stage, order: Int32Array.from({ length }, (_, k) => k % stage.blocks) };
  const stages = whole.stages.map((stage, k) =>
    k === table ? sized(stage, count - others - each)
    : k === table - 1 ? sized(stage, each) : stage);
  const network = whole.withStages(stages);
  session.original = session.network = network;
  const median = list => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const run = [], update = [];
  for (let k = 0; k < repeats; k++) {
    const x = [0.1 + 0.8 * k / repeats, 0.4];
    let start = performance.now();
    network.run(x);
    run.push(performance.now() - start);
    start = performance.now();
    store.set({ x, block: 0 });
    store.flush();
    update.push(performance.now() - start);
    await frame();
  }
  return { blocks: network.blocks, run_ms: median(run), update_ms: median(update) };
}"""

FRAMES = """() => {
  const log = window.frames = { count: 0 };
  let waiting = false;
  addEventListener("pointermove", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { log.count++; waiting = false; });
  }, true);
}"""


def drag(page: Any) -> dict[str, float]:
    """Move a token with the mouse; milliseconds of CPU for each frame that was drawn."""
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = client.send("Performance.getMetrics")["metrics"]
        return 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    page.evaluate(FRAMES)
    box = page.locator("[data-entry='1']").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    count, before = page.evaluate("frames.count"), spent()
    for k in range(2 * REPEATS):
        page.mouse.move(x + 2 * k, y)
        page.wait_for_timeout(40)
    after = spent()
    page.mouse.up()
    frames = page.evaluate("frames.count") - count
    return {"frames": frames, "frame_ms": (after - before) / frames}


def main() -> None:
    """Check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    network = ef.construct(ef.targets.sort(2, 1), grid=GRID).network
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        place = network_page(network, ef.targets.sort(2, 1)).save(Path(work) / "page.html")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(place.as_uri())
        x = np.random.default_rng(0).random((8, 2, 1))
        found = page.evaluate("X => X.map(everyformer.evaluate)", x.reshape(8, 2).tolist())
        if not np.array_equal(np.array(found).reshape(8, 2, 1), network(x)):
            msg = "The page computes other numbers than the network: nothing is timed."
            raise SystemExit(msg)
        for count in COUNTS:
            row = page.evaluate(TIMES, [count, REPEATS])
            page.wait_for_timeout(WAIT)
            rows.append(row | drag(page))
            tables.show(str(rows[-1]))
        size, version = place.stat().st_size, browser.version
        browser.close()
    report = {
        "theme": "explorer",
        "environment": environment(),
        "browser": f"chromium {version}",
        "page_bytes": size,
        "network": {"target": "sort", "n": 2, "grid": GRID, "blocks": network.blocks},
        "repeats": REPEATS,
        "rows": rows,
    }
    tables.show(f"Wrote {write(out, 'explorer', report)}.")


if __name__ == "__main__":
    main()
