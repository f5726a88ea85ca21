"""What secrets look like: the words of their names, and the forms of keys that are recognisable by themselves.

The kinds are those of the maintained detectors detect-secrets and gitleaks, and of the services that training jobs
use; words and patterns are our own. Patterns are linear in a text, whatever it is: repeats are bounded or possessive.
"""

from __future__ import annotations

import re
from functools import lru_cache


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


SECRET_WORDS = _split("""
    password passwords passwd passphrase passcode pass pwd secret secrets token credential credentials cred creds
    authorization auth oauth cookie cookies jwt jwts pat pats dsn webhook webhooks otp psk
""")
"""A name whose last word is one of these names a secret."""
SECRET_ENDINGS = tuple(
    _split("""
    password passwords passwd passphrase passcode pwd secret secrets token credential credentials authorization cookie
    cookies webhook webhooks dsn jwt connectionstring connectionstrings apikey apikeys accesskey accesskeys secretkey
    privatekey accountkey authkey signingkey encryptionkey masterkey sharedkey clientkey storagekey servicekey
""")
)
"""The same for names that are written as one word, such as PGPASSWORD or authtoken."""
_BEFORE_KEY = _split("""
    api app application access account admin private priv secret encryption signing sign auth storage master shared
    service client deploy ssh license licence session hmac aes rsa pgp gpg subscription db database server webhook
    wandb openai anthropic huggingface hf azure aws gcp google datadog comet neptune ngc
""")
_BEFORE_STRING = frozenset(("connection", "conn"))
SECRET_PAIRS = {
    "key": _BEFORE_KEY,
    "keys": _BEFORE_KEY,
    "tokens": _split("auth api access refresh bearer session secret security oauth personal service bot user"),
    "signature": _split("amz goog access hmac"),
    "string": _BEFORE_STRING,
    "strings": _BEFORE_STRING,
    "str": _BEFORE_STRING,
    "url": frozenset(("webhook", "sas")),
}
"""Last words that name a secret only after one of these."""
ORDINARY_PAIRS = {
    "token": _split("pad eos bos unk mask sep cls special image audio video per num max min total count"),
    "pass": _split("forward backward first second one two single multi num"),
}
"""What is meant instead after one of these: the vocabulary of a tokenizer, the passes over a model."""
TRAILING_WORDS = _split("value text b64 base64 hash prod production staging dev test header env")
"""What may follow: PASSWORD_PROD, password2."""
WORKING_FOLDERS = frozenset(("PWD", "OLDPWD"))
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(4096)
def is_secret_name(name: object) -> bool:
    """Whether a key, option, header or environment variable with this name holds what must not be written."""
    last = re.split(r"[.\s]", str(name))[-1].rstrip("]'\"")[-200:]
    words = [word.lower() for word in _WORD.findall(last)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in TRAILING_WORDS or words[-2:] == ["key", "id"]):
        words.pop()
    if not words or last in WORKING_FOLDERS:
        return False
    final, before = words[-1], words[-2] if len(words) > 1 else ""
    if before in ORDINARY_PAIRS.get(final, ()):
        return False
    return final in SECRET_WORDS or before in SECRET_PAIRS.get(final, ()) or "".join(words).endswith(SECRET_ENDINGS)


def is_token_list(name: object) -> bool:
    """Whether the name may mean keys as well as the tokens of a text: the value decides, see `looks_random`."""
    return re.split(r"[.\s_-]", str(name))[-1].lower() == "tokens"


_RANDOM = re.compile(r"(?![0-9.]+[eE][-+]?[0-9]+\Z)[\w~+=.-]{8,}(?<!\.[a-z]{3})(?<!\.[a-z]{2})\Z")


def looks_random(value: object) -> bool:
    """Whether a value looks like a key, and not like a number, a word or a file; of a list, whether any item does."""
    if isinstance(value, list | tuple):
        return any(looks_random(item) for item in value)
    if not isinstance(value, str) or not _RANDOM.match(text := value.strip("[]{}()'\" ,")):
        return False
    return any(map(str.isalpha, text)) and sum(map(str.isdigit, text)) > 1


FORMS = {
    "1Password": r"A3-[A-Z0-9]{6}-[A-Z0-9-]{20,}+|ops_eyJ[\w+/=-]{20,}+",
    "age": r"AGE-SECRET-KEY-1[A-Z0-9]{20,}+",
    "Airtable": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "Alibaba and Tencent": r"(?:LTAI|AKID)[A-Za-z0-9]{16,}+",
    "Amazon": r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}|ABSK[A-Za-z0-9+/=]{40,}+",
    "Artifactory": r"AKCp[A-Za-z0-9]{20,}+|cmVmd[A-Za-z0-9]{40,}+",
    "Atlassian": r"(?:ATATT3|ATCTT3|ATBB)[\w=-]{20,}+",
    "Azure client secret": r"[\w~.]{3}\dQ~[\w~.-]{31,34}",
    "Azure account key": r"[A-Za-z0-9+/]{86}==(?![A-Za-z0-9+/=])",
    "Brevo and SendGrid": r"SG\.[\w.-]{20,}+|x(?:keys|smtps)ib-[\w-]{20,}+",
    "Cloudflare": r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}+",
    "Databricks": r"dapi[0-9a-f]{32}(?:-\d)?",
    "DigitalOcean": r"do[opr]_v1_[0-9a-f]{20,}+",
    "Discord bot": r"(?<![\w-])[MNO][\w-]{23,25}+\.[\w-]{6}\.[\w-]{27,}+",
    "Docker": r"dckr_[po]at_[\w-]{16,}+",
    "Doppler": r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}+",
    "Dynatrace": r"dt0c01\.[A-Z0-9]{20,}+\.[A-Z0-9]{20,}+",
    "Facebook": r"EAA[A-Za-z0-9]{60,}+",
    "Figma, Contentful, Netlify": r"(?:figd_|CFPAT-|nfp_)[\w-]{20,}+",
    "Fly.io": r"(?:fo1_|fm1[ar]_|fm2_)[\w+/=-]{30,}+",
    "GitHub": r"gh[a-z]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+",
    "GitLab": r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[\w.-]{16,}+|GR1348941[\w-]{16,}+",
    "Google": r"AIza[\w-]{20,}+|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+|1//0[\w-]{20,}+",
    "Grafana": r"gl(?:c|sa)_[\w+/=-]{16,}+|eyJrIjoi[\w+/=-]{40,}+",
    "HashiCorp": r"hv[sbr]\.[\w-]{20,}+|[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,}+",
    "Heroku": r"HRKU-AA[\w-]{20,}+",
    "Hugging Face": r"(?:hf|api_org)_[A-Za-z0-9]{16,}+",
    "JSON web token": r"eyJ[\w-]{8,600}+\.[\w-]{8,}+(?:\.[\w-]*+){0,3}|ZXlK[\w+/=-]{40,}+",
    "Linear": r"lin_(?:api|oauth)_[A-Za-z0-9]{20,}+",
    "Mailchimp": r"[0-9a-f]{32}-us\d{1,2}",
    "model APIs": r"(?:gsk_|xai-|nvapi-|r8_|pplx-|pcsk_|lsv2_(?:pt|sk)_|tgp_v1_|KGAT_)[\w-]{20,}+",
    "New Relic": r"NR(?:AK|II|JS|RA)-[\w-]{16,}+",
    "Notion": r"ntn_[A-Za-z0-9]{40,}+|secret_[A-Za-z0-9]{43}",
    "npm": r"npm_[A-Za-z0-9]{20,}+",
    "OpenAI, Anthropic and their like": r"sk-(?=[\w-]{0,40}\d)[\w-]{16,}+",
    "OpenShift": r"sha256~[\w-]{40,}+",
    "PlanetScale": r"pscale_(?:tkn|oauth|pw)_[\w=.-]{20,}+",
    "Postman": r"PMAK-[0-9a-f]{20,}+-[0-9a-f]{20,}+",
    "Prefect, Pulumi, Readme, RubyGems": r"(?:pn[ub]_|pul-|rdme_|rubygems_)[A-Za-z0-9]{30,}+",
    "PyPI": r"pypi-(?:AgE[\w-]{10,}+|\w{32,}+)",
    "Sentry and Sourcegraph": r"(?:sntry[su]_|sgp_)[\w+/=-]{30,}+",
    "Shopify and Shippo": r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{20,}+|shippo_(?:live|test)_[A-Fa-f0-9]{20,}+",
    "Slack": r"xox[a-z]-[\w-]{10,}+|xapp-[\w-]{10,}+",
    "Square": r"sq0(?:atp|csp|idp)-[\w-]{20,}+",
    "Stripe": r"[spr]k_(?:live|test|prod)_[A-Za-z0-9]{10,}+|whsec_[A-Za-z0-9+/=]{16,}+",
    "Supabase": r"sb(?:p_[0-9a-f]{40}|_secret_[\w-]{20,}+)",
    "Telegram bot": r"\d{8,10}:A[\w-]{32,}+",
    "Twilio": r"SK[0-9a-f]{32}",
    "Weights & Biases": r"wandb_v\d_\w{20,}+|local-[0-9a-f]{40}",
}
"""Keys by their form alone, by whose they are. Git hashes, run ids, digests and paths have none of these."""

PLACES = {
    "Slack webhook": r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([^\s'\"<>]+)",
    "Discord webhook": r"discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/([^\s'\"<>]+)",
    "Teams webhook": r"(?:webhook\.office\.com/webhookb2|outlook\.office(?:365)?\.com/webhook)/([^\s'\"<>]+)",
    "Google Chat webhook": r"chat\.googleapis\.com/v1/spaces/([^\s'\"<>]+)",
    "other webhooks": r"(?:hooks\.zapier\.com/hooks/catch|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook)"
    r"/([^\s'\"<>]+)",
    "signature or key in a URL": r"(?:[?&;]|%26|%3F)(?:sig|signature|key|code)(?:=|%3D)([^\s&;'\"<>]{6,}+)",
    "header": r"\bbearer(?:\s{1,9}|%20|\+)([^\s'\",;\\]+)",
    "basic login": r"\bbasic(?:\s{1,9}|%20)(?=[A-Za-z0-9+/]{0,80}[0-9=])([A-Za-z0-9+/]{12,}+=*)",
    "login of curl": r"(?<!\S)(?:-u|--user|--proxy-user)(?:=|\s{1,9})['\"]?([^\s:'\"/]{1,100}+:[^\s'\"/]+)",
    "password in a .netrc": r"\blogin\s{1,9}\S{1,200}+\s{1,9}password\s{1,9}([^\s'\"]+)",
    "key of Weights & Biases": r"wandb[^\n]{0,30}?(?:login|key)[^\n]{0,30}?(?<![0-9a-f])([0-9a-f]{40})(?![0-9a-f])",
}
"""Secrets by what stands before them; the secret is the group."""
