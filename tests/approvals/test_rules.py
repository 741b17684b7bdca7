"""Rules over commands: the examples of the page on approvals, and what may not slip through."""

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia.approvals import Rules
from tertulia.approvals.gate import Call, judge
from tertulia.approvals.grant import Grant, Grants
from tertulia.records.errors import ConfigError
from tertulia.records.ids import ConversationId, TurnId
from tests.approvals.kit import verdict

pytestmark = pytest.mark.req("S2-08a")


RULES = Rules(
    allow=["git status", "ls *", "git log *", "echo *", "pytest *"], ask=["git push *"], deny=["rm -rf *"]
)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("git status", "allow"), ("git status -s", "ask"), ("ls", "allow"), ("ls -l a b", "allow"),
        ("ls $HOME", "allow"),
        ("ls *.py", "allow"), ("'ls' x", "allow"), ("./ls", "ask"), ("/bin/ls", "ask"), ("ls > out", "ask"),
        ("A=1 ls", "ask"),
        ("git log -3 | ls", "allow"), ("ls && git status", "allow"), ("ls && make", "ask"),
        ("ls && rm -rf x", "deny"),
        ("echo rm -rf x", "allow"), ("echo 'rm -rf x'", "allow"), ("echo $(rm -rf x)", "deny"),
        ("echo rm -rf x | sh", "ask"),
        ("git -c a=b status", "ask"), ("cd src && ls", "ask"), ("git log; git push", "ask"),
        ("git -C /x push", "ask"),
        ("rm x", "ask"), ("rm -r x", "ask"), ("rm -fr x", "deny"), ("rm -r -f x", "deny"), ("rm x -rf", "deny"),
        ("rm --recursive --force x", "deny"), ("rm --recurs -f x", "deny"), ("/bin/rm -rvf x", "deny"),
        ("\\rm -Rf x", "deny"),
        ("env rm -rf x", "deny"), ("sudo -u a rm -rf x", "deny"), ("bash -c 'ls; rm -rf x'", "deny"),
        ("eval 'rm -rf x'", "deny"),
        ("xargs rm -rf", "deny"), ("find . -exec rm -rf {} +", "deny"), ("timeout 5 rm -rf x", "deny"),
        ("(rm -rf x)", "deny"),
        ("rm $FLAGS x", "ask"), ("$'rm' -rf x", "ask"), ("{rm,-rf,x}", "ask"), ("bash <<E\nrm -rf x\nE", "ask"),
        ("foo rm -rf x", "ask"), ("pytest -k 'rm -rf x'", "ask"), ("rm\u00a0-rf x", "ask"), ("gіt status", "ask"),
    ],
)  # fmt: skip
def test_what_the_rules_say(command: str, wanted: str) -> None:
    assert verdict(command, RULES) == wanted


def test_the_mode_decides_what_no_rule_does() -> None:
    for command, wanted in (("make", "allow"), ("rm x", "allow"), ("rm -rf x", "deny"), ("git push", "ask"),
                            ("python -c 'x'", "ask"), ("$X", "ask"),
                            ("for i in a; do wc $i; done", "ask")):  # fmt: skip
        assert verdict(command, RULES, "allow") == wanted, command
    for command, wanted in (("make", "deny"), ("ls", "allow"), ("git push", "deny"), ("rm -rf x", "deny")):
        assert verdict(command, RULES, "deny") == wanted, command
    for command in ("python -c 'x'", "$X", "ls 'a"):
        assert verdict(command, Rules(), "allow") == "allow", "without rules there is nothing to look for"
        assert verdict(command, Rules(), "ask") == "ask"
        assert verdict(command, Rules(), "deny") == "deny"


def test_deny_beats_allow_and_ask() -> None:
    rules = Rules(allow=["rm *"], ask=["rm *"], deny=["rm *"])
    assert verdict("rm x", rules) == "deny"
    assert verdict("rm x", Rules(allow=["rm *"], ask=["rm *"]), "allow") == "ask"


def test_what_an_ask_rule_catches_is_granted_by_its_exact_words_only() -> None:
    grants, rules = Grants(), Rules(ask=["git log --all *"])
    for id, key in (("path", ("path", "git", "log")), ("exact", ("exact", "git", "log", "--all"))):
        grants.add(Grant(id=id, key=("shell", *key), root="/r", decision="allow", scope="session"))
    for command, wanted in (
        ("git log -3", "allow"), ("git log --all", "allow"), ("git log --all -3", "ask"),
        ("git log; git log --all", "ask"),
    ):  # fmt: skip
        call = Call(
            tool=("shell",),
            root="/r",
            mode="ask",
            command=command,
            conversation=ConversationId("c"),
            turn=TurnId("t"),
        )
        assert judge(call, rules, grants, 0).decision == wanted, command


def test_wildcards() -> None:
    rules = Rules(
        allow=["npm run test:*", "git log * --oneline", "make [ab]"], deny=["git*push *", "* --force"]
    )
    assert verdict("npm run test:unit", rules) == "allow"
    assert verdict("npm run test:unit x", rules) == "ask"
    assert verdict("make a", rules) == "allow"
    assert verdict("make c", rules) == "ask"
    assert verdict("make --force", rules) == "deny"


@pytest.mark.parametrize("bad", ["", "  ", "'a", 5, None])
def test_a_rule_that_is_none(bad: Any) -> None:
    with pytest.raises(ConfigError):
        Rules(allow=[bad])
    with pytest.raises(ConfigError):
        Rules(deny="rm *")


# ── whatever is put around it, what is denied is never allowed ──

WIDE = Rules(
    allow=["ls *", "echo *", "env *", "bash *", "sh *", "xargs *", "find *", "sudo *", "python *", "eval *",
    "cat *", "foo *",
           "timeout *", "ssh *", "git *", "* *"],
    deny=["rm *"],
)  # fmt: skip

spelled = st.sampled_from(
    ["rm", "'rm'", '"rm"', "r''m", 'r"m"', "\\rm", "r\\m", "/bin/rm", "./rm", "r\\\nm", "$'rm'", '$"rm"',
     "$'\\x72m'", "r$@m",
     "$(echo rm)", "`echo rm`", "${X:-rm}", "{rm,}", "/bin/r?", "RM", "command rm", "\\\nrm", "$(printf 'r%s' m)"]
)  # fmt: skip
arguments = st.sampled_from(
    [
        "-rf target",
        "-r -f target",
        "$X",
        "{-rf,target}",
        "'-rf' target",
        "--recursive target",
        "",
        "-rf 'a\nb'",
    ]
)
around = st.sampled_from(
    ["{}", "ls; {}", "ls && {}", "ls || {}", "ls | {}", "ls & {}", "ls\n{}", "{}; ls", "({})", "{{ {}; }}", "! {}",
     "time {}",
     "echo $({})", 'echo "$({})"', "echo `{}`", "cat <({})", "if ls; then {}; fi", "for i in a; do {}; done",
     "f() {{ {}; }}; f",
     "while {}; do ls; done", "case a in a) {};; esac", "env {}", "env A=1 {}", "sudo -u me {}", "xargs {}",
     "timeout 5 {}",
     "find . -exec {} \\;", "eval {}", "nohup {} &", "A=$({})", "export A=$({})", "ls ${{A:-$({})}}",
     "ls 2>/dev/null; {}",
     "coproc {}", "exec {}", "ls #\n{}", "ls \\\n; {}", "cat <<E\n$({})\nE", "bash <<E\n{}\nE", "bash <<'E'\n{}\nE",
     "[[ a ]] && {}",
     "(( 1 )) && {}", "ls {{a,b}}; {}", "cat <<-E | bash\n\t{}\n\tE", "ls;{}", "ls&&{}", "echo a>f;{}",
     "function f {{ {}; }}; f",
     "trap {} EXIT", "select x in a; do {}; done", "until {}; do ls; done", "xargs -I% {}", "bash -c 'ls' {}",
     "ls <<< a; {}"]
)  # fmt: skip
quoted = st.sampled_from(["bash -c {}", "sh -c {}", "eval {}", "ssh host {}", "env -S {}", "bash -lc {}",
                          "bash <<< {}", "echo {} | sh",
                          "trap {} EXIT", "xargs sh -c {}", "find . -exec sh -c {} \\;", "printf %s {} | bash",
                          "python -c {}"])  # fmt: skip


@st.composite
def hidden(draw: Any) -> str:
    command: str = f"{draw(spelled)} {draw(arguments)}"
    for _ in range(draw(st.integers(0, 3))):
        whole = draw(st.booleans())
        command = draw(around).format(command) if whole else draw(quoted).format(shlex.quote(command))
    return command


@settings(max_examples=300)
@given(hidden(), st.sampled_from(["ask", "allow", "deny"]))
def test_what_is_denied_is_never_allowed(command: str, mode: str) -> None:
    assert verdict(command, WIDE, mode) != "allow"


@given(
    st.text(alphabet=st.sampled_from("rm ls-f'\"\\$(){}`;|&<>\n\t#!=*?~[]\xa0\u200b\u0455aE0/"), max_size=40)
)
def test_any_text_gets_a_verdict(command: str) -> None:
    assert verdict(command, WIDE) in ("allow", "ask", "deny")


@given(st.text(max_size=60))
def test_any_unicode_gets_a_verdict(command: str) -> None:
    if not command.isascii():
        for mode in ("ask", "deny"):
            assert verdict(command, Rules(deny=["rm *"]), mode) != "allow"
