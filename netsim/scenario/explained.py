"""Prose of docs/spec/scenario.md that no table can hold: latencies, bursts, groups, by example.

A test parses every example. A block marked `text NAME` is the file NAME beside the scenario.
"""

from typing import Final

INTRODUCTION: Final = """\
# Scenarios

Written by `python -m shoal.netsim.scenario.reference > docs/spec/scenario.md`; a test compares, and
parses every example.

A scenario is a TOML 1.0 file in UTF-8. Its tables are `[sim]`, `[world]`, `[[link]]`, `[[nat]]`,
`[[host]]`, `[[group]]`, `[[step]]`, `[churn]` and `[[expect]]`; only `[sim]` and one host are
needed. Everything that is unknown, of the wrong form, or without effect is refused with its line.

- A **time** is a text with a unit: {times}.
- A **rate**: {rates}. A **size**: {sizes}.
- A **share** is a number from 0 to 1, or a text: `"2%"`.
- **Names** are one text or a list of texts. `all` means every host, `population` those of
  `[world]`, the name of a `[[host]]` with `count` all that it makes, and the name of a `[[group]]`
  the hosts that the seed draws for it.
- Where a gateway is asked for, a name that stands for a host means the host's own gateway.

Hosts without `nat` have a public address. The same file and seed give the same packets.
"""
LATENCY: Final = """\
### Latency

`latency` is the time that a packet takes between two sites, one way. The access links of both ends
come on top. Two hosts at one site are 1 ms apart where a matrix says the rest. A matrix holds round
trips; one way is half of the mean of both directions. `site` of a host or `[[nat]]` is its row,
counted from 0; volunteers get a site of their region, or any site where the region has none.

**A time**: the same between any two hosts.

```toml
[world]
latency = "40ms"
```

**`core`**, which comes with shoal: {cities} cities in six regions, computed as for `cities:FILE`.

```toml
[world]
latency = "core"
```

**`cities:FILE`**: computed from places. FILE is CSV without a header, one line for each site:
`name,region,latitude,longitude`, in degrees; lines that begin with `#` are comments. A round trip
is twice the great circle times {detour}, at {fibre:,.0f} km/s, plus {ends:g} ms. The regions of the
population are `eu`, `na`, `as`, `sa`, `oc` and `af`.

```toml
[world]
latency = "cities:offices.csv"
```

```text offices.csv
# name,region,latitude,longitude
Oslo,eu,59.9,10.8
Lima,sa,-12.0,-77.0
```

**`planetlab:FILE`**: measured round trips. FILE is a square of numbers between white space, one
line for each site; line A, number B is the round trip from A to B. The numbers are milliseconds, or
what `latency_unit` says. Where all are below {unsure:g} and `latency_unit` is absent, the file is
refused, since the numbers may be seconds.

```toml
[world]
latency = "planetlab:rtt.txt"
latency_unit = "s"
```

```text rtt.txt
0     0.040 0.150
0.042 0     0.120
0.151 0.118 0
```

**`wondernetwork:FILE`**: measured pings between cities. FILE is CSV with the header below, one line
for each pair, in milliseconds; of the numbers only `avg_ms` counts. `from` is a city with `+` for
spaces, `to` is "City Country, Continent". Each city that pings is a site, in alphabetical order; a
pair without a ping in either direction gets the median of all pings.

```toml
[world]
latency = "wondernetwork:pings.csv"
```

```text pings.csv
from,to,avg_ms,pct_sol,min_ms,max_ms,mdev_ms
Oslo,"Lima Peru, South America",200,60,199,204,0.8
Lima,"Oslo Norway, Eurasia",204,60,199,211,1.1
```
"""
BURST: Final = """\
### Loss that comes in bursts

`burst` describes a link with a good and a bad state (the model of Gilbert and Elliott). Before each
packet the state may change. All four are shares; the first three are needed.

| key | default | |
|---|---|---|
| `bad` | needed | chance that a good link turns bad, for each packet |
| `good` | needed | chance that a bad link turns good again, for each packet |
| `loss_bad` | needed | share of packets lost in the bad state |
| `loss_good` | `0.0` | share of packets lost in the good state |

In the long run `bad / (bad + good)` of the packets meet the bad state, and a stay in it lasts
`1 / good` packets on average. Below, 2.4 % of the packets meet it, for 5 packets on average, and
half of those are lost: 1.2 % in all. Where `loss` is set as well, the larger of the two holds for
each packet.

```toml
[[link]]
id = "wifi"
burst = { bad = "0.5%", good = "20%", loss_bad = "50%" }
```
"""
GROUPS: Final = """\
A group is a name for some of the hosts. Steps take it where they take hosts; `nat.reboot` and
`redial` then mean the gateways of those that have their own. The seed draws which hosts these are;
another group or a further host changes no draw. `kind` takes a kind of gateway, `public` for none,
or a class of `{name}`: {classes}. Of several groups that replace a link or a setting of a host, the
last one holds. `link` leaves the Wi-Fi behind a home's gateway as it was drawn. A run ends with the
line of a group that has too few hosts with this seed.

```toml
[sim]
name = "outage"
duration = "3m"

[world]
hosts = 40
population = "home-volunteers-2026"
latency = "core"
program = "udp-echo"
settings = {{ to = "server" }}

[[host]]
name = "server"
link = "fibre"
program = "udp-echo"
settings = {{ to = [] }}

[[group]]                 # two of the homes behind a carrier's NAT or a symmetric one
name = "far"
of = "population"
kind = ["cgn", "symmetric"]
count = 2
link = "lte+bad-wifi"
settings = {{ every = "3s" }}

[[group]]                 # 30 % of the other homes
name = "near"
of = "population"
without = "far"
share = "30%"

[[step]]
at = "1m"
action = "partition"
groups = [["far", "near"], ["server"]]
for = "30s"

[[step]]
at = "2m"
action = "nat.reboot"
target = "near"
```
"""
RELAYS: Final = """\
Rates are the daemon's own options `--relay`, `--up` and `--down`. A `[[group]]` gives them to part
of a population:

```toml
[sim]
name = "relays"
duration = "2m"

[world]
hosts = 20
population = "home-volunteers-2026"
settings = { engine = false, up = "10Mbit/s", relay = "none" }

[[group]]
name = "relays"
of = "population"
kind = ["public", "forwarded"]
settings = { relay = "1MB/s" }

[[host]]
name = "first"
```
"""
