"""The gates that compare the tree with a list: sizes, exceptions, requirements, public names."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gates import allow, api, manifest, pending, sizes

Tree = Callable[[dict[str, str]], Path]
Commit = Callable[[Path], None]

LONG = "def f():\n" + "    pass\n" * 60
ALLOW = "gates/allow.toml"


def texts(findings: list[allow.Finding]) -> str:
    return "\n".join(map(str, findings))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\n" * 501, "501 lines, the limit is 500"),
        (LONG, "61 lines, the limit is 60"),
        ("def f(a, b, c, d, e, f, g, h): ...\n", "8 parameters, the limit is 7"),
        ("class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(21)), "21 methods"),
    ],
)
def test_what_is_too_large_is_found(tree: Tree, source: str, said: str) -> None:
    root = tree({"src/x.py": source, ALLOW: ""})
    assert said in texts(sizes.check(root))


def test_a_recorded_size_passes_exactly_and_must_go_when_it_is_past(tree: Tree) -> None:
    assert sizes.check(tree({"src/x.py": LONG, ALLOW: '[functions]\n"src/x.py:f" = 61\n'})) == []
    assert "lower its entry" in texts(sizes.check(tree({ALLOW: '[functions]\n"src/x.py:f" = 62\n'})))
    assert "grew" in texts(
        sizes.check(
            tree({"src/x.py": LONG + "    pass\n"}) and tree({ALLOW: '[functions]\n"src/x.py:f" = 61\n'})
        )
    )
    assert "remove the entry" in texts(sizes.check(tree({"src/x.py": "x = 1\n"})))


def test_exceptions_may_only_shrink(tree: Tree, commit: Commit) -> None:
    root = tree({ALLOW: '[functions]\n"a" = 70\n[planned.methods]\n"b" = 45\n'})
    commit(root)
    assert allow.check_shrinking(tree({ALLOW: '[functions]\n"a" = 65\n[methods]\n"b" = 40\n'})) == []
    raised = '[functions]\n"a" = 71\n"c" = 80\n[methods]\n"b" = 46\n[no_run]\n"x.md" = 1\n'
    grown = tree({ALLOW: raised + '[planned.methods]\n"d" = 30\n'})
    assert len(allow.check_shrinking(grown)) == 5
    commit(root)
    assert len(allow.check_shrinking(root)) == 5, "a commit does not make it right"


REQUIREMENTS = '[[req]]\nid = "S0-01"\n[[req]]\nid = "S0-02"\n[[req]]\nid = "S0-03"\n'
CARRYING = """
    import pytest
    pytestmark = pytest.mark.req("S0-01")

    @pytest.mark.req("S0-02")
    def test_x(): ...
"""


def test_requirements_are_carried_or_pending(tree: Tree) -> None:
    files = {
        manifest.PATH: REQUIREMENTS,
        "tests/test_x.py": CARRYING,
        pending.PATH: 'ids = [\n    "S0-03",\n]\n',
    }
    assert manifest.check(tree(files)) == []


def test_requirements_that_do_not_add_up_are_found(tree: Tree) -> None:
    unknown = CARRYING + '\n    @pytest.mark.req("S9-99", name)\n    def test_y(): ...\n'
    files = {
        manifest.PATH: REQUIREMENTS,
        "tests/test_x.py": unknown,
        pending.PATH: 'ids = [\n    "S0-02",\n    "S8-01",\n]\n',
    }
    said = texts(manifest.check(tree(files)))
    assert "carries S9-99, which" in said
    assert "literal strings only" in said
    assert "no test carries S0-03" in said
    assert f"{pending.PATH}:2: S0-02 is carried by tests/test_x.py" in said
    assert f"{pending.PATH}:3: S8-01 is not in" in said


def test_pending_shrinks_and_never_grows(tree: Tree, commit: Commit) -> None:
    root = tree({pending.PATH: 'ids = [\n    "S0-01",\n    "S0-02",\n]\n'})
    commit(root)
    assert pending.prune(root, {"S0-01", "S7-01"}) == ["S0-01"]
    assert pending.ids(root) == {"S0-02": 2}
    assert pending.check_shrinking(root) == []
    tree({pending.PATH: 'ids = [\n    "S0-02",\n    "S0-03",\n]\n'})
    assert [finding.line for finding in pending.check_shrinking(root)] == [3]


PACKAGE = {
    "src/tertulia/testing/__init__.py": "",
    "src/tertulia/__init__.py": """
        __all__ = ["Base", "Thing", "AnyOf", "make"]

        class Base:
            def shared(self, x: int) -> str: ...
            def nearer(self) -> object: ...

        class Thing(Base):
            size: int = 3
            _hidden = 1

            def nearer(self) -> str: ...

            async def run(self, *, fast: bool = False) -> "Thing": ...

            @property
            def name(self) -> str: ...

        AnyOf = Base | Thing

        def make(*parts: str) -> Thing: ...
    """,
}
SURFACE = [
    "tertulia.AnyOf = Base | Thing",
    "class tertulia.Base",
    "tertulia.Base.nearer(self) -> object",
    "tertulia.Base.shared(self, x: int) -> str",
    "class tertulia.Thing(Base)",
    "tertulia.Thing.name(self) -> str  [property]",
    "tertulia.Thing.nearer(self) -> str",
    "tertulia.Thing.run(self, *, fast: bool=False) -> 'Thing'  [async]",
    "tertulia.Thing.shared(self, x: int) -> str",
    "tertulia.Thing.size: int = 3",
    "tertulia.make(*parts: str) -> Thing",
]


def test_the_public_surface_is_what_was_frozen(tree: Tree) -> None:
    root = tree({**PACKAGE, api.PATH: "\n".join(SURFACE) + "\n"})
    assert api.check(root) == []


def test_a_changed_surface_is_found_until_it_is_frozen_anew(tree: Tree) -> None:
    root = tree({**PACKAGE, api.PATH: "\n".join(SURFACE[:-1]) + "\ntertulia.gone\n"})
    said = texts(api.check(root))
    assert "- tertulia.gone" in said
    assert "+ tertulia.make(*parts: str) -> Thing" in said
    here = {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-m", "gates.api", "--write"], cwd=root, env=here, check=True, timeout=30)
    assert api.check(root) == []


def test_a_package_that_cannot_be_imported_is_found(tree: Tree) -> None:
    root = tree({**PACKAGE, "src/tertulia/testing/__init__.py": "import nonsense", api.PATH: ""})
    assert "cannot be read" in texts(api.check(root))
