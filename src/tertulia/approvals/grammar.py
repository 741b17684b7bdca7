"""A command line as bash's grammar sees it: a tree of plain values, made at once and held by nothing of the parser.

The grammar is given ASCII only. Its scanner reads beyond its tables at some characters outside of it and takes the
whole process down; to the shell such a character is one letter of a word like any other, and that is what it stands as
while it is parsed. The texts of the tree are those of the command itself.
"""

import functools
from typing import Any

LETTER = "Q"
"""Stands for a character that is not ASCII. No word of the shell's own has it."""


class Node:
    __slots__ = ("children", "end_byte", "is_named", "parent", "start_byte", "text", "type")

    def __init__(self, node: Any, text: str, parent: "Node | None") -> None:
        self.type: str = node.type
        self.is_named: bool = node.is_named
        self.start_byte: int = node.start_byte
        self.end_byte: int = node.end_byte
        self.text = text[self.start_byte : self.end_byte]
        self.parent = parent
        self.children: list[Node] = []


def parse(text: str) -> tuple[list[Node], bool]:
    """All nodes, the root first, and whether the grammar found the text wrong."""
    flat = text if text.isascii() else "".join(char if char.isascii() else LETTER for char in text)
    tree = _parser().parse(flat.encode("ascii"))
    root = tree.root_node
    top = Node(root, text, None)
    nodes = [top]
    waiting = [(root, top)]
    while waiting:
        found, made = waiting.pop()
        for child in found.children:
            made.children.append(Node(child, text, made))
        nodes.extend(made.children)
        waiting.extend(zip(found.children, made.children, strict=True))
    return nodes, bool(root.has_error)


@functools.cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
