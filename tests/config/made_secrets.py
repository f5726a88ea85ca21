"""Made-up secrets of every kind, put together when they are needed, so that no text here looks like a real one."""

from __future__ import annotations

CANARY = "c4nary"


def grow(length: int, alphabet: str = "c4naryB7") -> str:
    """So many characters of an alphabet, beginning with its first."""
    return (alphabet * (length // len(alphabet) + 1))[:length]


HEX, UPPER, DIGITS = "c4e7a09bd1f2", "C4NARYB7", "471920"


def put(*parts: str, sep: str = "") -> str:
    """One text of several."""
    return sep.join(parts)


MADE: dict[str, tuple[str, ...]] = {
    "1Password": (put("A3", grow(6, UPPER), grow(6, UPPER), grow(20, UPPER), sep="-"), put("ops", "_eyJ", grow(60))),
    "age": (put("AGE-SECRET", "-KEY-1", grow(58, UPPER)),),
    "Airtable": (put("pat", grow(14), ".", grow(64, HEX)),),
    "Alibaba and Tencent": (put("LT", "AI", grow(20)), put("AK", "ID", grow(32))),
    "Amazon": (put("AK", "IA", grow(16, UPPER)), put("AS", "IA", grow(16, UPPER)), put("AB", "SK", grow(80))),
    "Artifactory": (put("AKC", "p", grow(69)), put("cmV", "md", grow(59))),
    "Atlassian": (put("ATA", "TT3", grow(80)), put("AT", "BB", grow(32))),
    "Azure client secret": (put(grow(3), "8", "Q~", grow(34)),),
    "Azure account key": (put(grow(86), "=="),),
    "Brevo and SendGrid": (put("S", "G.", grow(22), ".", grow(43)), put("xkeys", "ib-", grow(64, HEX), "-", grow(16))),
    "Cloudflare": (put("v1", ".0-", grow(24, HEX), "-", grow(146, HEX)),),
    "Databricks": (put("da", "pi", grow(32, HEX)),),
    "DigitalOcean": (put("dop", "_v1_", grow(64, HEX)),),
    "Discord bot": (put("M", grow(23), ".", grow(6), ".", grow(27)),),
    "Docker": (put("dckr", "_pat_", grow(27)),),
    "Doppler": (put("dp", ".pt.", grow(43)),),
    "Dynatrace": (put("dt0", "c01.", grow(24, UPPER), ".", grow(64, UPPER)),),
    "Facebook": (put("EA", "AC", grow(100)),),
    "Figma, Contentful, Netlify": (put("fig", "d_", grow(40)), put("CF", "PAT-", grow(43)), put("nf", "p_", grow(40))),
    "Fly.io": (put("fo", "1_", grow(43)), put("fm", "2_", grow(120))),
    "GitHub": (*(put("gh", each, "_", grow(36)) for each in "posur"), put("github", "_pat_", grow(82))),
    "GitLab": (put("gl", "pat-", grow(20)), put("gl", "rt-", grow(20)), put("GR134", "8941", grow(20))),
    "Google": (
        put("AI", "za", grow(35)),
        put("ya", "29.", grow(60)),
        put("GOC", "SPX-", grow(28)),
        put("1//", "0", grow(40)),
    ),
    "Grafana": (put("gl", "sa_", grow(32), "_", grow(8, HEX)), put("eyJ", "rIjoi", grow(70))),
    "HashiCorp": (put("hv", "s.", grow(90)), put(grow(14), ".atlas", "v1.", grow(67))),
    "Heroku": (put("HR", "KU-AA", grow(58)),),
    "Hugging Face": (put("h", "f_", grow(34)), put("h", "f_", grow(34, "canary")), put("api", "_org_", grow(34))),
    "JSON web token": (
        put("ey", "J", grow(20), ".eyJ", grow(40), ".", grow(43)),
        put("ey", "J", grow(20), ".eyJ", grow(4_000), "."),
        put("ey", "J", grow(20), ".eyJ", grow(40)),
        put("ZX", "lK", grow(80)),
    ),
    "Linear": (put("lin", "_api_", grow(40)),),
    "Mailchimp": (put(grow(32, HEX), "-u", "s12"),),
    "model APIs": tuple(
        put(head, grow(40)) for head in ("gsk" + "_", "xa" + "i-", "nv" + "api-", "r8" + "_", "ppl" + "x-")
    ),
    "New Relic": (put("NR", "AK-", grow(27)),),
    "Notion": (put("nt", "n_", grow(46)), put("secret", "_", grow(43))),
    "npm": (put("np", "m_", grow(36)),),
    "OpenAI, Anthropic and their like": (
        put("s", "k-", grow(48)),
        put("s", "k-ant-", "api03-", grow(93)),
        put("s", "k-proj-", grow(60)),
    ),
    "OpenShift": (put("sha", "256~", grow(43)),),
    "PlanetScale": (put("pscale", "_tkn_", grow(43)),),
    "Postman": (put("PM", "AK-", grow(24, HEX), "-", grow(34, HEX)),),
    "Prefect, Pulumi, Readme, RubyGems": (
        put("pn", "u_", grow(36)),
        put("pu", "l-", grow(40, HEX)),
        put("ruby", "gems_", grow(48, HEX)),
    ),
    "PyPI": (put("py", "pi-", "AgE", grow(80)), put("py", "pi-", grow(60))),
    "Sentry and Sourcegraph": (put("sntr", "yu_", grow(64, HEX)), put("sg", "p_", grow(40, HEX))),
    "Shopify and Shippo": (put("shp", "at_", grow(32, HEX)), put("ship", "po_live_", grow(40, HEX))),
    "Slack": (
        *(put("xox", each, "-", grow(12, DIGITS), "-", grow(24)) for each in "abprs"),
        put("xap", "p-1-", grow(30)),
    ),
    "Square": (put("sq0", "atp-", grow(22)),),
    "Stripe": (put("sk", "_live_", grow(24)), put("rk", "_test_", grow(24)), put("wh", "sec_", grow(32))),
    "Supabase": (put("sb", "p_", grow(40, HEX)),),
    "Telegram bot": (put(grow(10, DIGITS), ":A", grow(34)),),
    "Twilio": (put("S", "K", grow(32, HEX)),),
    "Weights & Biases": (put("wandb", "_v1_", grow(77)), put("loc", "al-", grow(40, HEX))),
}
"""By the kinds of `distprof.config.secret_kinds.FORMS`."""

PLACED: dict[str, tuple[tuple[str, str], ...]] = {
    "Slack webhook": (
        (put("https://hooks.sl", "ack.com/services/"), put("T", grow(8, UPPER), "/B", grow(8, UPPER), "/", grow(24))),
    ),
    "Discord webhook": (
        (put("https://disc", "ord.com/api/webhooks/"), put(grow(18, DIGITS), "/", grow(68))),
        (put("https://disc", "ordapp.com/api/v10/webhooks/"), put(grow(18, DIGITS), "/", grow(68))),
    ),
    "Teams webhook": (
        (put("https://x.web", "hook.office.com/webhookb2/"), put(grow(36, HEX), "/IncomingWebhook/", grow(32, HEX))),
    ),
    "Google Chat webhook": (
        (put("https://chat.goo", "gleapis.com/v1/spaces/"), put(grow(11), "/messages?key=", grow(39))),
    ),
    "other webhooks": ((put("https://hooks.za", "pier.com/hooks/catch/"), put(grow(7, DIGITS), "/", grow(7))),),
    "signature or key in a URL": (
        ("https://x.blob.core.windows.net/c/b?sv=2022-11-02&sig=", grow(40) + "%3D"),
        ("https://bucket/x?sig=", grow(40)),
        ("https://maps/api?key=", grow(30)),
    ),
    "header": (("Bearer ", grow(30)), ("bearer%20", grow(30))),
    "basic login": (("Basic ", grow(22) + "=="),),
    "login of curl": (("curl -u ", f"me:{CANARY}"), ("curl --user ", f"me:{CANARY}")),
    "password in a .netrc": (("machine x\n  login me\n  password ", grow(12)),),
    "key of Weights & Biases": (("wandb login ", grow(40, HEX)), ("wandb.login(key='", grow(40, HEX))),
}
"""Secrets that what stands before them gives away, by the kinds of `distprof.config.secret_kinds.PLACES`."""

LINES = [grow(64) for _ in range(4)] + [grow(21) + "="]
PEM = "\n".join([put("-----BEGIN RSA PRIV", "ATE KEY-----"), *LINES, put("-----END RSA PRIV", "ATE KEY-----"), ""])
