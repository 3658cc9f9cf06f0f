"""The frame of the report's HTML pages: style, and the script that filters answers."""

from __future__ import annotations

import html
from string import Template


def html_page(title: str, body: str) -> str:
    """Return a page that loads nothing from elsewhere."""
    return _PAGE.substitute(title=html.escape(title), body=body)


_PAGE = Template("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --soft: #66707d; --line: #d7dce2; --paper: #fff; --link: #2f6db3;
  --right: #1a7f37; --wrong: #c4314b; --partly: #9a6700 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b1; --line: #39424d; --paper: #161b22;
  --link: #79b8ff; --right: #4ac26b; --wrong: #ff7b86; --partly: #d4a72c } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem } a { color: var(--link) } h1, h2 { overflow-wrap: anywhere }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top }
:is(th, td):not(:last-child) { white-space: nowrap }
details { border-bottom: 1px solid var(--line); padding: .25rem 0 }
summary { cursor: pointer; overflow-wrap: anywhere } details b { display: inline-block; width: 4rem }
.right b { color: var(--right) } .wrong b, .failed b, .error { color: var(--wrong) } .partly b { color: var(--partly) }
dl { margin: .5rem 0 .5rem min(4rem, 4vw) } dt { color: var(--soft) } .about { color: var(--soft) }
dd { margin: 0 0 .5rem; white-space: pre-wrap; overflow-wrap: anywhere } p { max-width: 48rem }
dd ol { margin: 0; padding-left: 1.5rem; white-space: normal } dd li { white-space: pre-wrap }
.plot { overflow-x: auto } svg { max-width: 100%; min-width: 20rem; height: auto; margin: .5rem 0 }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--soft) }
svg .grid { stroke: var(--line) } form label { display: inline-block; margin: 0 1rem .3rem 0 }
select { max-width: 100%; font: inherit }
</style></head><body>
<h1>$title</h1>
$body
<script>
// The part of the address after "#" names an answer ("answer-3"), or sets the filters ("system=om&type=temporal").
const form = document.querySelector("form"), items = [...document.querySelectorAll("details[data-state]")]
function filter() {
  const wanted = [...form.querySelectorAll("select")].filter(one => one.value)
  for (const item of items) item.hidden = !wanted.every(one => item.dataset[one.name] === one.value)
  const shown = items.filter(item => !item.hidden).length
  form.querySelector("output").textContent = shown + " of " + items.length + " answers"
}
function follow() {
  const words = location.hash.slice(1), item = document.getElementById(words)
  if (item || words.includes("=")) {
    const wanted = new URLSearchParams(item ? "" : words)
    for (const one of form.querySelectorAll("select")) one.value = wanted.get(one.name) ?? ""
    filter()
    if (item) item.open = true;
    (item ?? form).scrollIntoView()
  }
}
if (form) { form.addEventListener("change", filter); addEventListener("hashchange", follow); filter(); follow() }
</script>
</body></html>
""")
