"""The style sheet of the page: for wide screens, phones, the dark, and paper."""

STYLE_SHEET = """
:root {
  color-scheme: light dark;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  --paper: #ffffff; --ink: #1a1a1f; --muted: #6b6f76; --grid: #e4e6ea; --tile: #f5f6f8;
  --line: #d9dce1; --blue: #0072b2; --red: #d55e00; --good: #00664a; --warn: #9a4200;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171b; --ink: #e8e9ec; --muted: #a3a8b0; --grid: #2c3036; --tile: #1e2126;
    --line: #363b43; --blue: #5ab4ea; --red: #f0883e; --good: #3ecf9b; --warn: #f0a35e;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 var(--sans); font-variant-numeric: tabular-nums;
}
header { border-bottom: 2px solid var(--ink); padding-bottom: 1.1rem; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; line-height: 1.3; letter-spacing: -0.01em; margin: 0 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .6rem 0; max-width: 44rem; }
header p { color: var(--muted); margin: 0; }
nav { margin: 1rem 0 0; font-size: .9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; margin: 0;
  padding: 0; }
a { color: var(--blue); text-decoration-thickness: 1px; text-underline-offset: .15em; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }
section { margin-top: 2.6rem; scroll-margin-top: 1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); gap: .7rem;
  margin: 1.4rem 0 0; padding: 0; }
.tiles div { background: var(--tile); border-radius: .5rem; padding: .75rem .9rem; }
.tiles dt { color: var(--muted); font-size: .8rem; line-height: 1.3; }
.tiles dd { font-size: 1.35rem; font-weight: 600; line-height: 1.3; margin: .15rem 0 0; }
.tiles small { color: var(--muted); display: block; font-size: .8rem; font-weight: 400; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.2rem 1.6rem; margin: 1rem 0; align-items: start; }
.plots.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
figure { margin: 1rem 0; min-width: 0; } .plots figure { margin: 0; }
figcaption { color: var(--muted); font-size: .88rem; line-height: 1.5; margin-top: .3rem;
  max-width: 44rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg.narrow { display: none; }
.table { overflow-x: auto; margin: .9rem 0; }
table { border-collapse: collapse; font-size: .93rem; min-width: min(100%, 26rem); }
caption { caption-side: top; color: var(--muted); font-size: .88rem; padding-bottom: .3rem;
  text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem 1.3rem .35rem 0; text-align: left;
  vertical-align: top; }
th { font-weight: 600; } thead th { color: var(--muted); font-size: .83rem; font-weight: 500; }
td.number, th.number { text-align: right; white-space: nowrap; }
pre { background: var(--tile); border-radius: .5rem; font: .87rem/1.55 var(--mono); margin: .8rem 0;
  overflow-x: auto; padding: .8rem 1rem; }
code { font-family: var(--mono); font-size: .92em; }
.verdict { border-left: 4px solid var(--good); padding: .1rem 0 .1rem .9rem; }
.verdict.open { border-color: var(--warn); }
.verdict strong { color: var(--good); } .verdict.open strong { color: var(--warn); }
footer { border-top: 1px solid var(--line); color: var(--muted); font-size: .85rem;
  margin-top: 3rem; padding-top: .8rem; }
@media (max-width: 40rem) {
  body { padding: 1.4rem 1rem 3rem; }
  h1 { font-size: 1.55rem; }
  section { margin-top: 2.1rem; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .5rem; }
  .tiles dd { font-size: 1.15rem; overflow-wrap: anywhere; }
  svg.wide { display: none; } svg.narrow { display: block; }
  th, td { padding-right: .7rem; }
  tr > :last-child { padding-right: 0; }
  thead th.number { white-space: normal; vertical-align: bottom; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
@media print {
  :root {
    color-scheme: light; --paper: #ffffff; --ink: #000000; --muted: #4a4d52; --grid: #dddddd;
    --tile: #ffffff; --line: #bbbbbb; --blue: #0072b2; --red: #d55e00; --good: #00664a;
    --warn: #9a4200;
  }
  @page { size: A4; margin: 16mm 15mm; }
  html { font-size: 9.5pt; }
  body { line-height: 1.45; max-width: none; padding: 0;
    print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; }
  h1 { font-size: 18pt; } h2 { font-size: 13pt; }
  section { margin-top: 7mm; }
  p, figcaption { max-width: none; }
  h2, h3, h2 + p, h3 + p { break-after: avoid; }
  p, figure, table, pre, .tiles, .verdict { break-inside: avoid; }
  .tiles { grid-template-columns: repeat(4, 1fr); } .tiles div { border: 1px solid var(--line); }
  .tiles dd { font-size: 12pt; }
  .plots { grid-template-columns: 1fr 1fr; gap: 4mm 6mm; }
  .plots.small { grid-template-columns: repeat(3, 1fr); }
  svg.wide { display: block; } svg.narrow { display: none; }
  pre { border: 1px solid var(--line); white-space: pre-wrap; }
  a { color: inherit; text-decoration: none; }
}
"""
