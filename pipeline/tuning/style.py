"""The page's style sheet: its own fonts and colours, light and dark as the reader has it."""

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --paper: #ffffff; --ink: #16202c; --soft: #5b6877;
  --rule: #e1e6ec; --band: #1f6feb; --frontier: #d9730d; --aim: #1a7f4b; --now: #8a94a1; --bar: #6ea0ee; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e141b; --paper: #161e28; --ink: #e6ecf3; --soft: #9aa8b8;
  --rule: #283341; --band: #6ea8fe; --frontier: #ffa657; --aim: #56d08f; --now: #8391a3; --bar: #3f6fb5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 36px 28px 48px; max-width: 1360px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
header { max-width: 1000px; }
.eyebrow { margin: 0 0 6px; color: var(--soft); font-size: 12px; letter-spacing: .12em; text-transform: uppercase; }
h1 { margin: 0 0 10px; font-size: 27px; line-height: 1.25; font-weight: 650; letter-spacing: -.01em; }
h2 { margin: 0 0 8px; font-size: 16px; line-height: 1.35; font-weight: 620; }
.source { margin: 0; color: var(--soft); font-size: 13px; }
code { font: 12.5px ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 16px; margin: 26px 0 20px; }
.cards div, figure, section.streams, section.said, body > details {
  background: var(--paper); border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px; }
.cards strong { display: block; font-size: 29px; line-height: 1.15; font-weight: 640; letter-spacing: -.02em; }
.cards span { display: block; margin-top: 4px; }
.cards small { color: var(--soft); font-size: 12.5px; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 16px; }
figure { margin: 0; min-width: 0; display: flex; flex-direction: column; }
figcaption { margin-top: auto; padding-top: 8px; color: var(--soft); font-size: 12.5px; }
section.streams, section.said, body > details { margin-top: 16px; }
section.said ul { margin: 0; padding-left: 20px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11.5px; fill: var(--soft); }
svg text.axis { fill: var(--ink); font-size: 12px; }
svg text.marked { fill: var(--ink); font-size: 11.5px; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.line.band { stroke: var(--band); } .line.frontier { stroke: var(--frontier); } .line.whole { stroke: var(--band); }
.line.band-p99, .line.frontier-p99 { stroke-width: 1.4; stroke-dasharray: 2 3; }
.line.band-p99 { stroke: var(--band); } .line.frontier-p99 { stroke: var(--frontier); }
.line.band-q, .line.frontier-q { stroke-width: 1.4; stroke-dasharray: 7 4; opacity: .75; }
.line.band-q { stroke: var(--band); } .line.frontier-q { stroke: var(--frontier); }
.dot { stroke: var(--paper); stroke-width: 1.2; }
.dot.band { fill: var(--band); } .dot.frontier { fill: var(--frontier); }
.bar { fill: var(--bar); }
.mark { stroke-width: 1.4; } .mark.now { stroke: var(--now); } .mark.aim { stroke: var(--aim); stroke-dasharray: 5 4; }
.mark.quantile { stroke: var(--now); stroke-dasharray: 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 4px; padding: 0; list-style: none;
  font-size: 12.5px; color: var(--soft); }
.legend li::before { content: ""; display: inline-block; width: 22px; margin-right: 6px; vertical-align: middle;
  border-top: 2.4px solid var(--band); }
.legend li.frontier::before, .legend li.frontier-p99::before, .legend li.frontier-q::before {
  border-color: var(--frontier); }
.legend li.band-p99::before, .legend li.frontier-p99::before { border-top-style: dotted; }
.legend li.band-q::before, .legend li.frontier-q::before { border-top-style: dashed; border-top-width: 1.6px; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; text-align: left; vertical-align: bottom; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--rule); }
tbody tr:last-child td { border-bottom: 0; }
section.streams td:first-child { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px;
  overflow-wrap: anywhere; min-width: 110px; max-width: 260px; }
section.streams td:nth-child(4) { min-width: 160px; width: 22%; }
.reach { display: block; height: 10px; border-radius: 3px;
  background: color-mix(in srgb, var(--frontier) 30%, transparent); }
.reach b { display: block; height: 10px; border-radius: 3px; background: var(--frontier); }
.reach.fast { background: color-mix(in srgb, var(--band) 30%, transparent); } .reach.fast b { background: var(--band); }
section details { margin-top: 4px; }
td b { font-weight: 620; }
td small { color: var(--soft); white-space: nowrap; }
summary { cursor: pointer; font-weight: 620; } details table { margin-top: 12px; }
footer { margin-top: 20px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 600px) { body { padding: 22px 12px 32px; } h1 { font-size: 21px; }
  svg text { font-size: 14px; } svg text.axis, svg text.marked { font-size: 16px; }
  .cards div, figure, section.streams, section.said, body > details { padding: 14px; } }
@media print { body { background: #fff; } figure, section, details { break-inside: avoid; } }
"""
