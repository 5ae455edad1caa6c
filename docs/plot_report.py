"""Takes the picture of docs/report.md: `python -m docs.plot_report`, with chromium at hand."""

import tempfile
from pathlib import Path

from tests.browser import LEFT, RIGHT, chromium

from orthogp import GPRegressor
from orthogp.files.source import read_table

HERE = Path(__file__).parent
SETTLED = 'document.querySelector("#explore-panel").dataset.state === "settled"'
TO_SECTION = 'document.getElementById("explore").scrollIntoView({ behavior: "instant" })'


def main() -> None:
    """Fit the CO₂ of Mauna Loa, make it smoother and noisier, and take the picture."""
    table = read_table(HERE / "tutorials" / "co2.csv", "co2")
    model = GPRegressor("matern52").fit(table.X, table.y)
    model.about_ = {"inputs": ["year"], "target": "co2", "units": {"co2": "ppm"}}
    model.diagnose(table.X, table.y)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        browser.resize(1060, 1010)
        browser.open(model.report(Path(folder) / "page.html"))
        browser.press("#explore-lengthscale0", RIGHT * 60)
        browser.press("#explore-variance", LEFT * 20)
        browser.press("#explore-noise", RIGHT * 170)
        browser.wait(SETTLED)
        browser.run(f"document.activeElement.blur(); {TO_SECTION}")
        (HERE / "images" / "explore.png").write_bytes(browser.picture())


if __name__ == "__main__":
    main()
