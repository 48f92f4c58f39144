"""Functions and values of Python as text that is the same in every process: by what they do, not where they are.

A function counts by its bytecode, constants, names, defaults and closure, and by those of its own project's functions
that it uses. What belongs to Python or to another installed package counts by its name.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import enum
import hashlib
import inspect
import operator
import sys
import sysconfig
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range)
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
_MOST_OBJECTS = 20_000
_LONG, _SHOWN = 200, 40
_KINDS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


class UnknownValueError(ValueError):
    """A value has no text that is the same in every process."""


def value_text(value: object, own: Container[str] = ()) -> str:
    """The text of a value, or of a function with what it uses; long ones as a digest.

    ``own`` are the packages of the project itself: their code counts even if they are installed.

    Raises:
        UnknownValueError: it holds an object of an unknown kind.

    Example:
        >>> value_text({"b": [1, 2.5], "a": {"y", "x"}})
        "{'a': set('x', 'y'), 'b': [1, 2.5]}"
        >>> value_text(lambda v: v + 1) == value_text(lambda other: other + 1)
        True
        >>> value_text(lambda v: v + 1) == value_text(lambda v: v + 2)
        False
    """
    return _Values(own).text(value)


@dataclass
class _Values:
    """One walk over a value. An object inside itself is called by how far it is above."""

    own: Container[str]
    done: dict[int, str] = field(default_factory=dict)
    above: list[int] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)

    def text(self, value: object) -> str:
        if isinstance(value, enum.Enum):
            return f"{self._name(type(value))}.{value.name}={self.text(value.value)}"
        if type(value) in _PLAIN:
            return shortened(repr(value))
        if id(value) in self.above:
            return f"#{len(self.above) - self.above.index(id(value))}"
        if id(value) not in self.done:
            self.kept.append(value)  # No other object gets its id.
            if len(self.kept) > _MOST_OBJECTS:
                many = "it refers to too many objects"
                raise UnknownValueError(many)
            self.above.append(id(value))
            self.done[id(value)] = shortened(self._of_object(value))
            self.above.pop()
        return self.done[id(value)]

    def _of_object(self, value: Any) -> str:  # noqa: ANN401, C901, PLR0911  # one return for each kind
        match value:
            case types.ModuleType():
                return f"module {value.__name__}"
            case list() | tuple() if type(value) in (list, tuple):
                return f"{'[' if type(value) is list else '('}{', '.join(map(self.text, value))}]"
            case types.MappingProxyType():
                return self.text(dict(value))
            case dict() if type(value) is dict:
                return f"{{{', '.join(sorted(f'{self.text(key)}: {self.text(each)}' for key, each in value.items()))}}}"
            case set() | frozenset() if type(value) in (set, frozenset):
                return f"set({', '.join(sorted(map(self.text, value)))})"
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return f"method({self.text(value.__self__)}, {self.text(value.__func__)})"
            case staticmethod() | classmethod():
                return f"{type(value).__name__}({self.text(value.__func__)})"
            case property():
                return f"property({self.text([value.fget, value.fset])})"
            case type():
                return self._class(value)
            case types.BuiltinFunctionType() | types.MethodDescriptorType() | types.WrapperDescriptorType():
                return self._name(value)
            case _:
                return self._instance(value)

    def _function(self, function: types.FunctionType) -> str:
        if self._is_foreign(function.__code__.co_filename, function.__module__):
            return self._name(function)
        code = self._code(function.__code__, function.__globals__)
        parts = [
            function.__defaults__,
            function.__kwdefaults__,
            [_content(cell) for cell in function.__closure__ or ()],
        ]
        return f"function({code}, {', '.join(self.text(part) for part in parts if part)})"

    def _class(self, kind: type) -> str:
        if self._is_foreign(_file_of(kind.__module__), kind.__module__):
            return self._name(kind)
        own = {
            key: each
            for key, each in vars(kind).items()
            if isinstance(each, types.FunctionType | staticmethod | classmethod | property)
            or not (key.startswith(("__", "_abc_")) or isinstance(each, types.MemberDescriptorType))
        }
        return f"class {kind.__qualname__}({self.text(list(kind.__bases__))}, {self.text(own)})"

    def _instance(self, value: object) -> str:
        """An object as it would be pickled: how it is made, of what, and its state."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            made: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception as error:
            kind = f"it refers to an object of type {self._name(type(value))}"
            raise UnknownValueError(kind) from error
        if isinstance(made, str):
            return f"{type(value).__module__}.{made}"
        made_by, arguments, *rest = made
        given = [list(each) if isinstance(each, Iterator) else each for each in rest if each is not None]
        return f"{self._name(type(value))}({self.text(made_by)}, {self.text(list(arguments))}, {self.text(given)})"

    def _is_foreign(self, file: str | None, module: str | None) -> bool:
        """Whether what is defined there is a part of Python or of another package, and not of the project."""
        top = (module or "").partition(".")[0]
        if top == "__main__" or top in self.own:
            return False
        return top in sys.stdlib_module_names or any(each in str(file) for each in _INSTALLED)

    def _is_foreign_module(self, module: types.ModuleType) -> bool:
        return self._is_foreign(getattr(module, "__file__", None), module.__name__)

    def _name(self, value: Any) -> str:  # noqa: ANN401  # anything with a name
        """The name of what is foreign; the project may move its own to another module."""
        module = getattr(value, "__module__", None) or builtins.__name__
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{module}.{name}" if self._is_foreign(_file_of(module), module) else str(name)

    def _code(self, code: types.CodeType, names: Mapping[str, Any]) -> str:
        """Its instructions without lines; a global name stands for what it means."""
        kept = [each for each in dis.get_instructions(code) if each.opname not in ("NOP", "EXTENDED_ARG", "CACHE")]
        places = {each.offset: place for place, each in enumerate(kept)}
        shown = "; ".join(self._instruction(each, places, names) for each in kept)
        used = [names[name] for name in _names_of(code) if isinstance(names.get(name), types.ModuleType)]
        modules = [each for each in [*used, *_imported(code, names)] if not self._is_foreign_module(each)]
        reached = sorted(_reached(code, modules), key=operator.itemgetter(0))
        own = ", ".join(f"{name}={self.text(each)}" for name, each in reached)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KINDS)
        return f"code({counts}; {shown}; {own}; {code.co_exceptiontable!r})"

    def _instruction(self, each: dis.Instruction, places: Mapping[int, int], names: Mapping[str, Any]) -> str:
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            said = str(next((place for at, place in places.items() if at >= each.argval), len(places)))
        elif isinstance(each.argval, types.CodeType):
            said = self._code(each.argval, names)
        elif each.opcode in dis.hasconst:
            said = self.text(each.argval)
        elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME") and each.argval in names:
            said = self.text(names[each.argval])
        elif each.opcode in dis.hasname or each.opcode in dis.hascompare:
            said = str(each.argval)
        else:
            said = str(each.arg)
        return f"{each.opname} {said}"


def _names_of(code: types.CodeType) -> set[str]:
    """The global names, and those of attributes, that a function uses, also inside the functions that it defines."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names_of, inner))


def _imported(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[types.ModuleType]:
    """The modules that a function imports itself, as far as they are loaded."""
    package = str(names.get("__package__") or "")
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            for name in (str(each.argval), f"{package}.{each.argval}"):
                if name in sys.modules:
                    yield sys.modules[name]


def _reached(code: types.CodeType, modules: Iterable[types.ModuleType]) -> Iterator[tuple[str, object]]:
    """What a function may take from its own project's ``modules``: whatever they have by a name that it uses."""
    used = _names_of(code)
    for module in modules:
        found = ((name, getattr(module, name)) for name in used if hasattr(module, name))
        yield from ((f"{module.__name__}.{name}", each) for name, each in found if each is not module)


def shortened(text: str) -> str:
    """``text``; of a long one the beginning and a digest."""
    return text if len(text) <= _LONG else f"{text[:_SHOWN]}… {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _content(cell: Any) -> object:  # noqa: ANN401  # what closures hold
    try:
        return cell.cell_contents
    except ValueError:  # The function is used before the variable is set.
        return None


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)
