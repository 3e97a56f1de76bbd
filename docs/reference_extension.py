"""For mkdocstrings: pages of the reference say what a reader can use, in the words of the source.

A field of an attrs class is shown with its default instead of the call of `attrs.field`. Left out is what a class keeps for
itself, and what it has for others of our modules: the text of those begins with "For …:".
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_FOR_OTHERS: Final = re.compile(r"For [^:\n]+: ")
_NOISE: Final = {"class-attribute", "instance-attribute", "module-attribute", "writable"}


class Reference(griffe.Extension):
    """The extension that mkdocs.yml names."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Called for every attribute that was found."""
        call = attr.value
        if not isinstance(call, griffe.ExprCall) or str(call.function) not in ("attrs.field", "field"):
            return
        given = {each.name: each.value for each in call.arguments if isinstance(each, griffe.ExprKeyword)}
        factory = given.get("factory")
        attr.value = given.get("default", None if factory is None else f"{factory}()")

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for every class with its members."""
        init = cls.members.get("__init__")
        own = range(0) if init is None or init.is_alias else range(init.lineno, init.endlineno + 1)
        for name, member in list(cls.members.items()):
            if not member.is_alias and _is_internal(member, own):
                del cls.members[name]
            elif isinstance(member, griffe.Attribute):
                member.labels -= _NOISE


def _is_internal(member: Any, lines_of_init: range) -> bool:
    if member.docstring is None:
        return bool(member.is_attribute and member.lineno in lines_of_init)
    return _FOR_OTHERS.match(member.docstring.value) is not None
