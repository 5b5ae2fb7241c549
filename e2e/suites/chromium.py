"""Headless Chromium rendering a page that builds itself, in its sandbox and without."""

import packages
from compare import FAILED, PASSED, Unit

FRAMES = "256M"
# The sandbox refuses to start for root.
USER = "nobody"
AS_USER = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", "--"]
BROWSER = [
    "chromium", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--user-data-dir={folder}/tmp/profile",
    "--timeout=30000", "--dump-dom", "file://{folder}/page.html",
]
# Sorts, lays out and draws, and writes the results into the page.
PAGE = """<!doctype html><title>page</title><p id="sum"></p><canvas id="c" width="600" height="400"></canvas>
<script>
let x = 1n, rows = [];
for (let i = 0; i < 300000; i++) rows.push({key: "k" + (i * 7919 % 300007), value: i});
rows.sort((a, b) => a.key < b.key ? -1 : 1);
for (let i = 0; i < rows.length; i += 100) x = (x * 31n + BigInt(rows[i].value)) % 1000000007n;
const table = document.createElement("table");
for (let i = 0; i < 2000; i++) table.insertRow().insertCell().textContent = rows[i * 100].key;
document.body.append(table);
const canvas = document.getElementById("c"), draw = canvas.getContext("2d");
for (let i = 0; i < 200; i++) { draw.fillStyle = `hsl(${i} 80% 50%)`; draw.fillRect(i * 3, i * 2, 40, 40); }
const pixels = draw.getImageData(0, 0, 600, 400).data;
let colours = 0;
for (const value of pixels) colours = (colours * 31 + value) % 1000003;
document.getElementById("sum").textContent = `rows ${x} pixels ${colours} height ${table.offsetHeight > 0}`;
</script>
"""


def units(folder):
    packages.install("chromium")
    yield Unit("sandboxed", AS_USER + BROWSER, cases, 60, prepare)
    yield Unit("without-sandbox", [BROWSER[0], "--no-sandbox", *BROWSER[1:]], cases, 60, prepare)


def prepare(folder):
    (folder / "page.html").write_text(PAGE)


def cases(run):
    """The page's sum, which the native run and the paged run have to agree on."""
    found = run.log.split('<p id="sum">')[-1].split("</p>")[0]
    drawn = found.startswith("rows ") and "</html>" in run.log
    return {f"page of {found[:60]}" if drawn else "page": PASSED if drawn and run.status == 0 else FAILED}
