"""Secrets of every kind are masked wherever they stand, what is none stays, and no text takes long."""

from __future__ import annotations

import json
import shlex
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.config.redact import MASK, find_secrets, is_secret_name, mask, mask_known, redact, secret_values
from distprof.config.secret_kinds import FORMS, PLACES
from tests.config.made_secrets import LINES, MADE, PEM, PLACED, grow

AROUND = (
    "{}",
    "--x={}",
    "https://host/{}?x=1",
    '{{"a": "{}"}}',
    "['-x', '{}']",
    "ValueError: cannot open {}: no",
    "run-{}",
    "a_{}",
)


def test_every_kind_has_an_example() -> None:
    assert set(MADE) == set(FORMS) and set(PLACED) == set(PLACES)


@pytest.mark.parametrize("kind", MADE)
def test_fault_48_a_key_is_masked_by_its_form_alone(kind: str) -> None:
    for secret in MADE[kind]:
        for around in AROUND if kind != "Discord bot" else AROUND[:-2]:  # it begins with any letter of three
            text = around.format(secret)
            assert mask(text, ()) == mask_known(text, ()) == around.format(MASK), text
        assert secret not in json.dumps(redact({"a": [f"x {secret}"], "b": json.dumps({"c": secret})}))


@pytest.mark.parametrize("kind", PLACED)
def test_fault_48_a_secret_is_masked_by_what_stands_before_it(kind: str) -> None:
    for before, secret in PLACED[kind]:
        for after in ("", " ", "' x", '"}', "\nx"):
            assert mask(before + secret + after, ()) == mask_known(before + secret + after, ()) == before + MASK + after


NAMES = """
    password PASSWORD db_password dbPassword PGPASSWORD DB_PASSWORD_PROD password2 user-password passwd passphrase pwd
    DB_PWD userPwd MYSQL_PWD pass db_pass secret secrets client_secret clientSecret clientsecret CLIENT-SECRET token
    accessToken access_token authtoken AUTH_TOKEN api_tokens accessTokens HF_TOKEN cred creds DB_CREDS credentials
    dsn SENTRY_DSN sentryDsn connection_string ConnectionString connectionstring CONN_STR jwt JWT_TOKEN userJwt pat
    GH_PAT account_key accountKey AccountKey ACCOUNTKEY storage-account-key api_key apiKey APIKey apikey X-Api-Key
    access_key AWS_ACCESS_KEY_ID SharedAccessKey private_key privateKey ssh_key signing_key auth basic_auth
    authorization Proxy-Authorization cookie Set-Cookie session_cookie cookies webhook webhook_url SLACK_WEBHOOK
    webhookUrl X-Amz-Signature X-Amz-Credential X-Amz-Security-Token X-Goog-Signature otp psk OPENAI_KEY
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", NAMES)
def test_fault_48_a_value_is_masked_after_its_name(name: str) -> None:
    secret = "q7"
    assert is_secret_name(name)
    for text in (
        f"{name}={{}} rest", f"--{name}={{}} rest", f"--{name} {{}} rest", f"{name}: {{}}", f'{{{{"{name}": "{{}}"}}}}',
        f"{{{{'{name}': '{{}}'}}}}", f"?a=1&{name}={{}}&b=2", f"['--{name}', '{{}}']", f"a.{name}='{{}}'",
        f'\\"{name}\\": \\"{{}}\\"', f"{name}%3D{{}}", f"{name} = {{}}", f"{name}: '{{}}", f'{name} == "{{}}"',
    ):  # fmt: skip
        assert mask(text.format(secret), ()) == text.format(MASK), text
    assert redact({name: secret, "a": ["--" + name, secret]}) == {name: MASK, "a": ["--" + name, MASK]}
    assert redact([{"name": name, "value": secret}]) == [{"name": name, "value": MASK}]


STAY = (
    "tokens_per_step=8192 num_tokens=5 max_tokens: 7 tokenizer=gpt2 tokens=4,096 tokens=1e9 tokens=16384.0",
    "commit 3f1c2ab9d0e4f5a6b7c8d9e0f1a2b3c4d5e6f708",
    "wandb run at 3f1c2ab9d0e4f5a6b7c8d9e0f1a2b3c4d5e6f708",
    "sha256:3f1c2ab9d0e4f5a6b7c8d9e0f1a2b3c4d5e6f7083f1c2ab9d0e4f5a6b7c8d9e0",
    "runs/2026-11-23_10-04-05_training",
    "run_id=a1b2c3d4e5f6 id=0d3b5c1e-77aa-4c1b-9d7e-0a1b2c3d4e5f",
    "/data/tokens_v2/train.bin tokens=/data/tokens_v2.bin",
    "pad_token=<pad> eos_token: 2 bos_token_id=50256 vocab_size=50257",
    "PWD=/home/me OLDPWD=/tmp",
    "key=3 keys: [1, 2]",
    "primary_key=id sort_key=a public_key=x cache_key-3f1c2ab9d0e4f5a6b7c8d9e0f1a2b3c4",
    "hf_transformers_trainer_v2",
    "at::native::auth::verify(int): done",
    "forward_pass=3 backward_pass: 4",
    "author=me secretary: us compass=n",
    "http://host:8080/a@b git@github.com:a/b.git user@host",
    "npm_config_registry pypi-server sk_test SG.2 eyJ.eyJ",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "num_tokens=many tokens: below",
    "loss=2.13 step_time: 12.3 ms pattern=x path=/a/b patience=3",
    "-u 3 --user me",
    "basic transformer",
    "pass_count=3",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>",
    "password_file=/run/x token_length=7 secret_name=a credential_path=/x",
)


@pytest.mark.parametrize("text", STAY)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text, ()) == text and find_secrets(text) == []


@pytest.mark.parametrize("name", ["tokens", "train.tokens", "TOKENS"])
def test_tokens_are_keys_only_if_they_look_like_keys(name: str) -> None:
    key = grow(12)
    assert mask(f"{name}={key} {name}: ['{key}', 'b']", ()) == f"{name}={MASK} {name}: {MASK}"
    assert redact({name: [key, 1]}) == {name: MASK}
    assert redact({name: 4096, "a": {name: [1, 2]}}) == {name: 4096, "a": {name: [1, 2]}}


BEARER = ("--header", f"Authorization: Bearer {grow(24)}")


@pytest.mark.parametrize(
    "text",
    [
        " ".join(BEARER),
        shlex.join(BEARER),
        repr(list(BEARER)),
        json.dumps(BEARER),
        f"Command '{list(BEARER)}' failed",
        json.dumps({"headers": {"Authorization": BEARER[1].split(": ")[1]}}),
        f"Authorization=Bearer {grow(24)}",
        json.dumps(json.dumps({"Authorization": BEARER[1].split(": ")[1]})),
        f"GET /?h=Bearer%20{grow(24)}&x=1",
        f"[('authorization', 'Bearer {grow(24)}')]",
        f"Proxy-Authorization: bearer   {grow(24)}",
        f'curl -H "{BEARER[1]}" https://host',
        f"Authorization: {grow(24)}",
        f"Authorization: Custom {grow(24)}",
        f"Authorization: AWS4-HMAC-SHA256 Credential={grow(24)}, SignedHeaders=host, Signature={grow(24)}",
        f'Authorization: Digest username="me", response="{grow(24)}"',
        f"Authorization: Basic {grow(24)}",
    ],
)
def test_fault_48_the_token_of_a_header_is_masked_and_not_its_scheme(text: str) -> None:
    for secrets in ((), secret_values([text]), secret_values(BEARER)):
        masked = mask(text, secrets)
        assert grow(24) not in masked and MASK in masked
        for word in ("Bearer", "bearer", "Basic", "Digest"):
            assert (word in masked) == (word in text)
        assert mask(masked, secrets) == masked


def test_fault_48_the_words_of_a_header_on_the_command_line_are_not_searched_for() -> None:
    found = secret_values([*BEARER, "--auth", f"Bearer {grow(12)}", "--proxy-auth", "required"])
    assert {grow(24), grow(12)} <= set(found) and not {"Bearer", "required"} & set(found)


def test_all_pairs_of_a_cookie_are_masked() -> None:
    pairs = f"sid={grow(20)}; csrf=ab; Path=/; HttpOnly"
    for text in (
        "Cookie: {} --steps 3",
        "Set-Cookie: {}",
        "-H 'Cookie: {}' x",
        '{{"cookie": "{}"}}',
        "--cookie '{}' y",
    ):
        assert mask(text.format(pairs), ()) == text.format(MASK)


@pytest.mark.parametrize("around", ["{}", "key is {} and so on", '{{"k": "{}"}}', "K='{}'"])
def test_fault_48_a_private_key_is_masked_as_a_whole_and_in_part(around: str) -> None:
    whole, half = PEM.strip(), len(PEM) // 2
    for written in (whole, whole.replace("\n", "\\n"), whole.replace("\n", "\\\\n"), whole.replace("\n", "\r\n")):
        assert mask(around.format(written), ()) == around.format(MASK)
    for cut in (
        PEM[:half],
        PEM[half:].strip(),
        PEM[:half].replace("\n", "\\n"),
        PEM[half:].strip().replace("\n", "\\n"),
    ):
        masked = mask(around.format(cut), ())
        assert MASK in masked and not any(line in masked for line in (LINES[0][:16], LINES[-1]))


def test_a_secret_of_several_lines_is_found_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_KEY", PEM)
    assert mask(f"bad line: {LINES[0]}", secret_values()) == f"bad line: {MASK}"


@pytest.mark.parametrize("spell", [str, repr, json.dumps, shlex.quote, lambda text: quote(text, safe="")])
def test_fault_48_secrets_in_json_in_the_environment_are_known(spell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(spell)
    value = 'c4nary "q7" \\ z'
    inner = {"db": {"password": value, "port": 5432}, "list": [{"auth": {"a": "s3same-x"}}], "note": "ordinary-note"}
    monkeypatch.setenv("SETTINGS", json.dumps({"inner": json.dumps(inner), "steps": 1000000}))
    secrets = secret_values()
    assert mask(f"cannot use {spell(value)} s3same-x ordinary-note 1000000", secrets).count("c4nary") == 0
    assert (
        "s3same" not in mask("s3same-x", secrets) and mask("ordinary-note 1000000", secrets) == "ordinary-note 1000000"
    )


def test_what_follows_a_known_value_is_masked_too() -> None:
    assert mask("token=c4nary-and-more x", ["c4nary"]) == f"token={MASK} x"


PARTS = st.sampled_from(
    [
        "token",
        "=",
        ":",
        " ",
        "'",
        '"',
        "\\",
        "{",
        "}",
        "[",
        "]",
        MASK,
        "Bearer ",
        "--password ",
        "x7",
        "://",
        "@",
        "/",
        "Authorization: ",
        "Cookie: a=b; ",
        "\n",
        ",",
        "tokens=abcd1234",
        "-----BEGIN PRIV" + "ATE KEY-----",
        "sk-" + grow(20),
        "-----END PRIV" + "ATE KEY-----",
        "...",
        "%3D",
        "Digest ",
        "a=b, ",
    ]
)


@given(st.lists(PARTS, max_size=12).map("".join))
def test_masking_twice_is_masking_once(text: str) -> None:
    once = mask(text, ["redact", "x7x7x7"])
    assert mask(once, ["x7x7x7"]) == once


HURTFUL = (
    "://",
    ":/a:",
    "@:/",
    "://a:b@ ",
    "a",
    "a = ",
    "--a ",
    "--token ",
    "--token '",
    "' ",
    "= ",
    "sk-",
    "-eyJaaaaaaaa",
    "eyJaaaaaaaaaa.",
    "bearer ",
    "basic ",
    "token=",
    "token='",
    "token=\\'",
    'token="\\"',
    "token: {",
    "tokens: [",
    "token [",
    "tokens=aaaaaaa1",
    "tokentoken",
    "password_",
    "Authorization: a=",
    "Cookie: a=b;",
    "login x password ",
    "wandb key ",
    "-----BEGIN PRIV" + "ATE KEY-----ab\n",
    "-----END PRIV" + "ATE KEY-----",
    "abcdABCD12345678\n",
    "?sig=",
    "-u a:",
    "A+/",
    "hooks.slack.com/services/",
    "\\",
    "%3D",
    "M.",
    "..",
)


@pytest.mark.parametrize("piece", HURTFUL)
def test_four_times_the_text_takes_about_four_times_as_long(piece: str) -> None:
    """Quadratic work would take sixteen times as long. A busy machine adds least to the shortest of several tries."""

    def measure(length: int) -> float:
        text, taken_s = piece * (length // len(piece)), []
        for _ in range(4):
            begin_s = time.process_time()
            mask(text, ())
            taken_s.append(time.process_time() - begin_s)
        return min(taken_s)

    assert measure(40_000) < 10 * measure(10_000) + 0.005
