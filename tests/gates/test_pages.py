"""The gates that read the README and the docs: examples that run, and names that are there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gates import documented, examples, links

Tree = Callable[[dict[str, str]], Path]

ALLOW = {"gates/allow.toml": ""}
COMMAND = {
    "src/tertulia/__init__.py": "",
    "src/tertulia/__main__.py": """
        import pathlib, sys
        print(" ".join(sys.argv[1:]), sorted(path.name for path in pathlib.Path().iterdir()))
        sys.exit("fail" in sys.argv)
    """,
}


def check(tree: Tree, page: str) -> list[str]:
    return [str(finding) for finding in examples.check(tree({**ALLOW, **COMMAND, "docs/page.md": page}))]


def test_the_blocks_of_a_page_are_one_story(tree: Tree) -> None:
    page = """\
        ```python
        from pathlib import Path
        Path("made").touch()
        ```

        ```console
        $ make fail
        $ tertulia show --all
        show --all ['made']
        $ tertulia any  # a comment
        any […]
        $ tertulia silent
        ```
        """
    assert check(tree, page) == []


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```python\nx = 1\nraise ValueError(x)\n```\n", "docs/page.md:2: the example fails"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "the example fails"),
        ("```console\n\n$ tertulia show\nother\n```\n", "docs/page.md:3: `tertulia show` prints otherwise"),
        ("```bash\n$ tertulia fail\n```\n", "`tertulia fail` ends with 1"),
        ("```python no-run\nx = 1\n```\n", "an example that does not run"),
    ],
)
def test_an_example_that_is_not_true_is_found(tree: Tree, block: str, said: str) -> None:
    findings = check(tree, block)
    assert len(findings) == 1
    assert said in findings[0]


def test_an_example_that_hangs_is_stopped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "SECONDS", 0.2)
    assert "still running" in check(tree, "```python\nimport threading\nthreading.Event().wait()\n```\n")[0]


def test_exceptions_are_counted(tree: Tree) -> None:
    page = "```python no-run\nx = 1\n```\n"
    for count, findings in ((1, 0), (2, 1)):
        root = tree({"gates/allow.toml": f'[no_run]\n"docs/page.md" = {count}\n', "docs/page.md": page})
        assert len(examples.check(root)) == findings


SOURCE = {
    "src/tertulia/__init__.py": "",
    "src/tertulia/cli/__init__.py": "",
    "src/tertulia/cli/main.py": """
        import argparse
        COMMANDS = {"store": ("store", "")}

        def make_parser(only=""):
            parser = argparse.ArgumentParser(prog="tertulia")
            parser.add_argument("--version")
            commands = parser.add_subparsers().add_parser("store")
            if only == "store":
                commands.add_argument("path", metavar="PATH")
                commands.add_argument("-q", "--quiet")
            return parser
    """,
}
PAGE = "# `tertulia`\n\n`--version`\n\n## `tertulia store`\n\n`tertulia store PATH`: `-q`, `--quiet`\n\n"


def test_a_command_and_its_flags_are_named_in_its_section(tree: Tree) -> None:
    assert documented.check(tree({**SOURCE, "docs/cli.md": PAGE})) == []


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        (PAGE.replace("`--quiet`", ""), {"--quiet"}),
        ("# `tertulia`\n\n`--version` `-q`\n\n## `tertulia store`\n\n`--quiet` `PATH`\n", {"-q"}),
        (
            "`tertulia` `tertulia store` `--version` `PATH` `-q` `--quiet`",
            {"tertulia", "tertulia store", "--version", "PATH", "-q", "--quiet"},
        ),
    ],
)
def test_what_is_not_named_there_is_found(tree: Tree, page: str, missing: set[str]) -> None:
    findings = documented.check(tree({**SOURCE, "docs/cli.md": page}))
    assert {finding.text.split("`")[1] for finding in findings} == missing


def test_a_page_that_is_not_there_names_nothing(tree: Tree) -> None:
    events = """
        class One:
            class __struct_config__:
                tag = "one"
        class Two(One):
            class __struct_config__:
                tag = "two"
        AnyEvent = One | Two
    """
    records = {"src/tertulia/__init__.py": "", "src/tertulia/records/__init__.py": ""}
    root = tree({**records, "src/tertulia/records/event.py": events, "docs/other.md": "`one` `two`"})
    assert len(documented.check(root)) == 2


def test_links_that_lead_nowhere_are_found(tree: Tree) -> None:
    other = "# One\n\n## `tertulia store`: what, and why\n"
    good = "[a](other.md) [b](other.md#tertulia-store-what-and-why) [c](#here) [d](https://example.org/x)\n\n# Here\n"
    root = tree({"docs/page.md": good, "docs/other.md": other, "README.md": "[docs](docs/page.md#here)\n"})
    assert links.check(root) == []
    tree({"docs/page.md": "[a](gone.md)\n[b](other.md#two)\n"})
    assert [(finding.path, finding.line) for finding in links.check(root)] == [
        ("README.md", 1),
        ("docs/page.md", 1),
        ("docs/page.md", 2),
    ]
