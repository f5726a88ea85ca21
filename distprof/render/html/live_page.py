"""The page of a running job, which asks the port that it came from what it shows."""

from __future__ import annotations

from distprof.render.html.page import make_page

_BODY = """\
<header><h1 id="title">distprof</h1><p id="state" role="status">asking the job</p></header>
<p id="urgent" class="alert" role="alert" hidden></p>
<div id="live" hidden>
<section class="card" id="card"><h2 id="verdict"></h2><p id="next"></p><small id="judged"></small></section>
<dl class="tiles" id="facts"></dl>
<section><h2>Step time</h2><div id="times"></div><p id="span"></p></section>
<section><h2>Ranks by phases</h2>
<p>Means of the last steps, in milliseconds; own is the step less waiting for others.</p>
<ul class="legend" id="legend"></ul>
<div class="wide" role="region" aria-label="Ranks by phases" tabindex="0">
<table id="ranks" class="by-rank"><thead></thead><tbody></tbody></table></div></section>
</div>"""


def make_live_page() -> str:
    """The page, which holds nothing of a job."""
    return make_page("live", _BODY, scripts=("live.js",), connects=True)
