"""HTML template of a report. It has no scripts and uses no external resources."""

from typing import Final

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ run.name }}, seed {{ run.seed }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
 max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1rem 0; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #eee;
 vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.met { color: #116329; } .failed { color: #b3261e; font-weight: 600; } .dim { color: #666; }
a { color: #2b6cb0; }
dl { display: flex; flex-wrap: wrap; gap: .8rem 1.8rem; margin: 1.5rem 0; }
dt { font-size: 1.45rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
dd { margin: 0; color: #666; font-size: .92rem; }
svg { max-width: 100%; height: auto; } code { font-size: .9em; }
.note { color: #666; max-width: 45rem; margin: .3rem 0 1rem; }
pre { background: #f6f7f9; border: 1px solid #e3e8ee; padding: .8rem 1rem; overflow-x: auto;
 font-size: .85rem; line-height: 1.45; }
pre span { display: inline-block; min-width: 2.5em; color: #8a94a0; user-select: none; }
pre span:target { background: #ffe9a8; color: #1a1a1a; }
</style>
</head>
<body>
<h1>{{ run.name }}</h1>
<p class="dim">
{% if not run.digest %}{{ "%.1f"|format(run.real) }} s of real time, in a real kernel
{% else %}seed {{ run.seed }} · {{ "%.1f"|format(run.virtual) }} s of virtual time
{% if run.real %}in {{ "%.1f"|format(run.real) }} s of real time
({{ fast }} times as fast){% endif %}
· {{ "{:,}".format(run.records) }} records of packets
· digest <code>{{ run.digest }}</code>{% endif %}</p>
{% if run.ended != "done" %}
<p class="failed">The run did not complete: {{ run.ended }}</p>
{% endif %}

{% if headline %}
<dl>
{% for words, value in headline %}<div><dt>{{ value }}</dt><dd>{{ words }}</dd></div>
{% endfor %}
</dl>
{% endif %}

{% if run.verdicts %}
<h2>Expectations:
{% if missed %}<span class="failed">{{ missed }} of {{ run.verdicts|length }} failed</span>
{%- else %}<span class="met">{{ "all " if run.verdicts|length > 1 }}met</span>{% endif %}</h2>
<table>
<tr><th>expected<th class="n">found<th></tr>
{% for item in run.verdicts %}
<tr><td>{{ item.text }}
{% if item.line and scenario %}<a href="#L{{ item.line }}">line {{ item.line }}</a>
{% elif item.line %}<span class="dim">line {{ item.line }}</span>{% endif %}
<td class="n">{{ item.shown }}
<td class="{{ 'met' if item.met else 'failed' }}">{{ "met" if item.met else "failed" }}</tr>
{% endfor %}
</table>
{% endif %}

<h2>What happened</h2>
{{ plots.timeline or "" }}
{% if plots.timeline and run.happenings %}<p class="note">Top to bottom: the steps of the scenario,
packets per second, hosts that are up. A bar lasts from a step to its end, which is shaded in the
rows below; a diamond is a step without an end.</p>{% endif %}
{% if run.happenings %}
<table>
<tr><th class="n">at, s<th class="n">until, s<th>what<th>on</tr>
{% for item in run.happenings %}
<tr><td class="n">{{ "%.2f"|format(item.at) }}
<td class="n">{{ "" if item.until is none else "%.2f"|format(item.until) }}
<td>{{ item.what }}<td>{{ item.target }}</tr>
{% endfor %}
</table>
{% else %}<p>No step was asked for.</p>{% endif %}
{% if deeds %}
<p>Done to hosts, links and gateways by steps and churn, {{ run.deeds|length }} times in all:
{% for what, count in deeds %}{{ what }} {{ count }}{{ ", " if not loop.last }}{% endfor %}.</p>
{% endif %}

{% if plots.distributions %}
<h2>Distributions</h2>
<p class="note">Each curve shows how many of the samples are at most as large as the value below it.
Dashed: half of them (p50). Dotted: 95 % of them (p95). Distributions of one value are only in the
table below.</p>
{% for plot in plots.distributions %}{{ plot }}{% endfor %}
{% endif %}

<h2>Hosts by kind of gateway</h2>
<p class="note">Volunteers of a population are listed under their class, hosts without a gateway
under “public”. Sent, received and dropped are packets at the hosts; gateways are not
counted here.</p>
{{ plots.topology or "" }}
<table>
<tr><th>gateway or class<th class="n">hosts<th class="n">sent<th class="n">received
<th class="n">dropped</tr>
{% for row in kinds %}
<tr><td>{{ row.kind }}<td class="n">{{ row.hosts }}<td class="n">{{ row.sent }}
<td class="n">{{ row.received }}<td class="n">{{ row.dropped }}</tr>
{% endfor %}
</table>

{% if run.pairs.classes %}
<h2>Pairs that reached each other</h2>
<p class="note">Counts {{ pairs }}. In the table, 7/8 means 7 of 8, and · that there was no such
pair{% if plots.matrix %}; in the plot, blue is all of them, red none, and grey that there was no
such pair{% endif %}. Each pair counts in both of its places.</p>
{{ plots.matrix or "" }}
<div class="wide"><table>
<tr><th>{% for name in run.pairs.classes %}<th class="n">{{ name }}{% endfor %}</tr>
{% for name in run.pairs.classes %}
<tr><th>{{ name }}{% for met, all in run.pairs.cells[loop.index0] %}
<td class="n">{{ "%d/%d"|format(met, all) if all else "·" }}{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}

<h2>All figures</h2>
<table>
{% for name, value, means in scalars %}
<tr><td>{{ name }}<td class="n">{{ value }}<td class="dim">{{ means }}</tr>
{% endfor %}
</table>
{% if spreads %}
<div class="wide"><table>
<tr><th>distribution{% for key in keys %}<th class="n">{{ key }}{% endfor %}</tr>
{% for name, means, values in spreads %}
<tr><td>{{ name }}{% for key in keys %}<td class="n">{{ values.get(key, "") }}{% endfor %}</tr>
{% endfor %}
</table></div>
<p class="note">{% for name, means, values in spreads %}{{ name }}: {{ means }}
{{- "; " if not loop.last }}{% endfor %}.
p95 is the value that 95 % of the samples do not exceed.</p>
{% endif %}

{% if scenario %}
<h2>The scenario</h2>
<pre>{% for line in scenario %}<span id="L{{ loop.index }}">{{ loop.index }}</span>{{ line }}
{% endfor %}</pre>
{% endif %}

{% if not plots.available %}
<p class="dim">For plots, install matplotlib (<code>pip install matplotlib</code>) and run
<code>shoal sim report</code> again.</p>
{% endif %}
<p class="dim">
{% if run.digest %}<code>shoal sim replay</code> with this folder repeats the run; runs with the
same digest had the same packets.{% endif %}
Packets are sent by hosts and by gateways, once on each wire; times are virtual.</p>
<p class="dim">
{% for name, version in run.versions.items() %}{{ name }} {{ version }}{{ ", " if not loop.last }}
{% endfor %}</p>
</body>
</html>
"""
