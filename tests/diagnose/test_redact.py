"""What may be mailed: no secrets of known forms, no characters that a terminal obeys, and the words
of a diagnosis left as they are.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.redact import TEXT_MAX, clean, cleaned, escaped, redacted, redacted_words

HEX40 = "0123456789abcdef" * 2 + "01234567"
SECRETS = [
    ("aws_access_key_id = AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("login with hf_abcdefghijABCDEFGHIJ0123456789", "hf_abcdefghij"),
    ("HF_TOKEN=short-one", "short-one"),
    ("WANDB_API_KEY=" + HEX40, HEX40),
    ("wandb: Appending key for api.wandb.ai: " + HEX40, HEX40),
    ("wandb login --relogin " + HEX40, HEX40),
    ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
    ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
    ("curl -H 'authorization: bearer abcdefabcdefabcdef' x", "abcdefabcdef"),
    ("git clone https://user:pa55@git.example/x", "pa55"),
    ("redis://:pa55word@cache:6379/0", "pa55word"),
    ("https://abcdefabcdefabcdefabcdef@git.example/x", "abcdefabcdef"),
    ("GET https://b.s3/x?X-Amz-Signature=abc123&X-Amz-Expires=1", "abc123"),
    ("['train.py', '--api-key', 'abc', '--lr', '1']", "'abc'"),
    ("train.py --db-password hunter2 --lr 3", "hunter2"),
    ("train.py --hf-token=abc", "=abc"),
    ("password: 1234", "1234"),
    ('{"password": "x y", "a": 1}', "x y"),
    ('"{\\"secret_token\\": \\"abc def\\"}"', "abc def"),
    ("machine api.wandb.ai login user password abcdef", "abcdef"),
    ("sshpass -p abcdef ssh node1", "abcdef"),
    ("ghp_abcdefghijABCDEFGHIJ0123456789abcd", "ghp_abcdef"),
    ("key sk-proj-abcdefghij0123456789", "sk-proj-abc"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN", "dozjgNryP4J3"),
    ("DefaultEndpointsProtocol=https;AccountKey=abc/def+ghi==;x", "abc/def"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "b3Blbn"),
    ("Set-Cookie: session=abc; path=/", "session=abc"),
    ("MASTER_KEY='abc'", "abc"),
]
WORDS_OF_A_DIAGNOSIS = [
    "pad_token_id=0 max_tokens: 4096 num_tokens=5 tokens_per_second: 123.4 tokenizer: gpt2",
    "KeyError: 'token'",
    "commit " + HEX40,
    "TCPStore tcp://10.0.0.1:29500 waiting for key: default_pg/0//cuda",
    (
        "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE)"
    ),
    "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (double bit error)",
    "mlx5_core 0000:c1:00.0: device's health compromised",
    'File "/srv/train.py", line 12, in <module>',
    "--nnodes=2 --master_port=29500 --rdzv_id=abc --node_rank 1",
    "Out of memory: Killed process 1234 (python) total-vm:1kB, anon-rss:2kB",
    "cls_token: True, mask_token=None, api_key=None",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_of_a_known_form_is_taken_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)
    assert "[redacted]" in redacted(text)
    assert secret not in redacted(f"2026-01-02 [rank0] {text} and more")


@pytest.mark.parametrize("text", WORDS_OF_A_DIAGNOSIS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("text", [text for text, _ in SECRETS] + WORDS_OF_A_DIAGNOSIS)
def test_a_second_time_takes_out_no_more(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb\u2066c\u200bd\ufeff", "a\\u202eb\\u2066c\\u200bd\\ufeff"),
        ("one\u2028two\x85three", "one\\u2028two\\x85three"),
        ("back\x08space\rreturn\x00", "back\\x08space\\x0dreturn\\x00"),
        ("\udce9", "\\udce9"),
        ("é ü 漢 ─ 🙂 fine", "é ü 漢 ─ 🙂 fine"),
        ("two\nlines\tand tab\r\n", "two lines and tab"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left_of_anything(text: str) -> None:
    assert not any(
        ord(char) < 32
        or 0x7F <= ord(char) < 0xA0
        or 0xD800 <= ord(char) < 0xE000
        or 0x202A <= ord(char) < 0x202F
        for char in clean(text)
    )


def test_every_text_of_a_json_value_is_cleaned_and_nothing_else_changes() -> None:
    value = {
        "class": "gpu",
        "line": 3,
        "none": None,
        "evidence": [{"text": "HF_TOKEN=abcdef \x1b[2J", "p": 0.5}],
    }
    assert cleaned(value) == {
        "class": "gpu",
        "line": 3,
        "none": None,
        "evidence": [{"text": "HF_TOKEN=[redacted] \\x1b[2J", "p": 0.5}],
    }


@pytest.mark.parametrize(
    "part",
    [
        "token",
        "passwd=",
        "a",
        "eyJ",
        "wandb ",
        "://",
        "a-",
        "--token ",
        "-----BEGIN PRIVATE KEY-----",
        '"',
        "login x ",
        "Bearer ",
        "&key=",
        "A_KEY",
        "a.b-",
        "cookie:",
        "\\",
        "'token' ",
        "https://",
        "sk-",
        "password  ",
        "A",
    ],
)
def test_the_time_is_linear_whatever_is_repeated(part: str) -> None:
    """Method: ten times as much may take at most forty times as long, by the processor's clock,
    once it takes long enough to be measured.
    """

    def seconds(count: int) -> float:
        text = (part * (count // len(part) + 1))[:count]
        began_s = time.process_time()
        redacted(text)
        return time.process_time() - began_s

    assert seconds(TEXT_MAX) < max(0.4, 40 * seconds(TEXT_MAX // 10))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["train.py", "--api-key", "abcdef123456", "--lr", "0.1"],
            ["train.py", "--api-key", "[redacted]", "--lr", "0.1"],
        ),
        (["--password=hunter2", "x"], ["--password=[redacted]", "x"]),
        (["--max-tokens", "4096"], ["--max-tokens", "4096"]),
        (["--token"], ["--token"]),
        (["token", "abcdef123456"], ["token", "abcdef123456"]),  # no option, but two arguments
        ([], []),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words: list[str], shown: list[str]) -> None:
    assert redacted_words(words) == shown
