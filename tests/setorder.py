"""Finds code whose result depends on the order of a set, by types guessed within one file.

The order of a set of texts or bytes depends on PYTHONHASHSEED, and that of a set of plain objects
on their addresses. An expression counts as a set if it is a display, a comprehension, a call of
`set` or `frozenset`, an operation on a set, or a name, an attribute or a call that this file
annotates or assigns so. Sets of numbers and of tuples of numbers have the same order in each
process.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import TypeAlias

SETS = {"set", "frozenset", "Set", "AbstractSet", "MutableSet", "WeakSet"}
MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict", "Final", "ClassVar"}
NUMBERS = {"int", "bool", "float", "tuple"}
COMBINES = {"union", "intersection", "difference", "symmetric_difference", "copy"}
OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
# The result of these does not depend on the order of their arguments.
FREE = {"sorted", "len", "any", "all", "set", "frozenset", "fsum", "Counter", "bool"}
FREE_METHODS = {
    *("update", "difference_update", "intersection_update", "isdisjoint", "issubset"),
    *("issuperset", "subtract", *COMBINES),
}
LEAST = {"min", "max", "nlargest", "nsmallest"}  # without a key
# The result of these does.
ORDERED = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "deque", "chain", "sum"}
ORDERED_METHODS = {"join", "extend", "fromkeys", "from_iterable"}
DRAWS = {"choice", "sample", "shuffle"}
# Methods by which a loop may change other collections without a trace of its order.
UNORDERED_DEEDS = {"add", "discard", "remove"}
WHY = (
    "the order of a set depends on PYTHONHASHSEED or on addresses: sort it, or use a dict or a "
    "tuple in order of arrival (ADR 0078)"
)

Kind: TypeAlias = ast.expr | None
"""An annotation, written or guessed, or None if the type is unknown."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES = (ast.expr_context, ast.operator, ast.Constant, ast.Name)
A_SET: Kind = ast.parse("set", mode="eval").body


def name_of(node: ast.expr | None) -> str:
    """Return the last part of a name: `a` of `a`, `self.a` and `a[int]`."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def plain(kind: Kind) -> Kind:
    """Return an annotation without quotes, `| None`, `Final[…]` and `ClassVar[…]`."""
    if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
        return plain(ast.parse(kind.value, mode="eval").body)
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        return next((each for each in (plain(kind.left), plain(kind.right)) if is_set(each)), None)
    if isinstance(kind, ast.Subscript) and name_of(kind) in ("Final", "ClassVar"):
        return plain(kind.slice)
    return kind


def is_set(kind: Kind) -> bool:
    """Return whether values of this type are sets whose order differs from process to process."""
    kind = plain(kind)
    if name_of(kind) not in SETS:
        return False
    if not isinstance(kind, ast.Subscript):
        return True
    names = {each.id for each in ast.walk(kind.slice) if isinstance(each, ast.Name)}
    return not names <= NUMBERS


def value_of(kind: Kind) -> Kind:
    """Return the type of a mapping's values."""
    kind = plain(kind)
    if name_of(kind) not in MAPPINGS or not isinstance(kind, ast.Subscript):
        return None
    parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else []
    return parts[1] if len(parts) == 2 else None


class Names:
    """Types of the names, attributes and functions of one file, as far as it states them."""

    def __init__(self, tree: ast.Module) -> None:
        self.attributes: dict[str, Kind] = {}
        self.returns: dict[str, Kind] = {}
        self.locals: list[dict[str, Kind]] = [{}]
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                self.returns[node.name] = node.returns
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign):
                        self.attributes[name_of(each.target)] = each.annotation
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                self.attributes[node.target.attr] = node.annotation

    def bind(self, scope: ast.Module | Function, nodes: Iterable[ast.AST]) -> None:
        """Add the names of a function or of the module, with these nodes, to the innermost
        scope."""
        known = self.locals[-1]
        if isinstance(scope, FUNCTIONS):
            spec = scope.args
            for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
                known[each.arg] = each.annotation
        for node in nodes:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known[node.target.id] = node.annotation
            elif isinstance(node, ast.Assign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._loop(node.target, node.iter)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)
        kind = self.kind(value)
        if isinstance(target, ast.Name) and (is_set(kind) or value_of(kind) is not None):
            self.locals[-1].setdefault(target.id, kind)
        elif isinstance(target, ast.Attribute) and is_set(kind):
            self.attributes.setdefault(target.attr, kind)

    def _loop(self, target: ast.expr, over: ast.expr) -> None:
        """Bind the targets of a loop over the values or items of a mapping to sets."""
        if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Attribute):
            return
        value = value_of(self.kind(over.func.value))
        if over.func.attr == "items" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        elif over.func.attr != "values":
            return
        if isinstance(target, ast.Name) and is_set(value):
            self.locals[-1][target.id] = value

    def kind(self, node: ast.expr) -> Kind:
        """Return the type of an expression; None if it is unknown."""
        if isinstance(node, ast.Name):
            return next(
                (names[node.id] for names in reversed(self.locals) if node.id in names), None
            )
        if isinstance(node, ast.Attribute):
            return self.attributes.get(node.attr)
        if isinstance(node, ast.Set | ast.SetComp):
            numbers = isinstance(node, ast.Set) and all(map(is_number, node.elts))
            return None if numbers else A_SET
        if isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
            return next((each for each in self._operands(node) if is_set(each)), None)
        if isinstance(node, ast.Subscript):
            return value_of(self.kind(node.value))
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Await | ast.NamedExpr | ast.Starred):
            return self.kind(node.value)
        if isinstance(node, ast.IfExp):
            return self._first_set((node.body, node.orelse))
        return self._first_set(node.values) if isinstance(node, ast.BoolOp) else None

    def _first_set(self, nodes: Iterable[ast.expr]) -> Kind:
        return next((kind for kind in map(self.kind, nodes) if is_set(kind)), None)

    def _operands(self, node: ast.BinOp) -> Iterator[Kind]:
        for each in (node.left, node.right):
            keys = isinstance(each, ast.Call) and name_of(each.func) == "keys"
            yield A_SET if keys else self.kind(each)

    def _call(self, node: ast.Call) -> Kind:
        name = name_of(node.func)
        if isinstance(node.func, ast.Subscript):  # `set[int]()`
            return node.func if name in SETS | MAPPINGS else None
        if isinstance(node.func, ast.Name):
            ranged = node.args and name_of(getattr(node.args[0], "func", None)) == "range"
            return A_SET if name in SETS and not ranged else self.returns.get(name)
        if not isinstance(node.func, ast.Attribute):
            return None
        of = self.kind(node.func.value)
        if name in COMBINES and (is_set(of) or name_of(node.func.value) in SETS):
            return of or A_SET
        if name in ("get", "pop", "setdefault") and value_of(of) is not None:
            return value_of(of)
        return self.returns.get(name) if name_of(node.func.value) == "self" else None


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def within(scope: ast.AST) -> tuple[list[ast.AST], list[Function]]:
    """Return the nodes of a scope without those of functions within it, and these functions."""
    nodes, inner = list[ast.AST](), list[Function]()
    waiting = [*ast.iter_child_nodes(scope)][::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS):
            inner.append(node)
        else:
            nodes.append(node)
            children = [each for each in ast.iter_child_nodes(node) if not isinstance(each, LEAVES)]
            waiting.extend(children[::-1])
    return nodes, inner


class Finder:
    """Finds the uses of an order of a set in one file."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.found: list[str] = []
        self._path = path
        self._names = Names(tree)
        self._free: set[int] = set()
        self._look(tree)

    def _look(self, scope: ast.Module | Function) -> None:
        nodes, inner = within(scope)
        self._names.bind(scope, nodes)
        for node in nodes:
            self._mark(node)
        for node in nodes:
            for each in self._ordered(node):
                if is_set(self._names.kind(each)):
                    text = ast.unparse(each)[:60]
                    self.found.append(f"{self._path}:{each.lineno}: `{text}`: {WHY}")
        for function in inner:
            self._names.locals.append({})
            self._look(function)
            self._names.locals.pop()

    def _mark(self, node: ast.AST) -> None:
        """Note which expressions below this one may have any order."""
        if isinstance(node, ast.Set):
            self._free.update(map(id, node.elts))
        elif isinstance(node, ast.SetComp):
            self._free.add(id(node))
        elif isinstance(node, ast.Call):
            name, method = name_of(node.func), isinstance(node.func, ast.Attribute)
            whole = name in LEAST and not any(each.arg == "key" for each in node.keywords)
            counts = name == "sum" and all(map(is_count, node.args))
            if name in FREE or whole or counts or (method and name in FREE_METHODS):
                self._free.update(map(id, node.args))

    def _ordered(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the expressions whose order counts in this node."""
        if id(node) in self._free:
            return
        if isinstance(node, ast.For) and not all(map(is_unordered, node.body)):
            yield node.iter
        elif isinstance(node, ast.GeneratorExp | ast.ListComp | ast.DictComp):
            yield from (each.iter for each in node.generators)
        elif isinstance(node, ast.Starred | ast.YieldFrom):
            yield node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
            if len(node.targets[0].elts) > 1:
                yield node.value
        elif isinstance(node, ast.Call):
            name, method = name_of(node.func), isinstance(node.func, ast.Attribute)
            if name in ORDERED or (method and name in ORDERED_METHODS):
                yield from (each for each in node.args if id(each) not in self._free)
            elif name in LEAST and node.keywords:
                yield from node.args
            elif method and name in DRAWS:
                yield from node.args[:1]
            elif method and name == "pop" and not node.args:
                assert isinstance(node.func, ast.Attribute)
                yield node.func.value


def is_count(node: ast.expr) -> bool:
    """Return whether a sum over this counts, so that its terms are whole numbers."""
    if not isinstance(node, ast.GeneratorExp | ast.ListComp):
        return False
    term = node.elt
    negated = isinstance(term, ast.UnaryOp) and isinstance(term.op, ast.Not)
    sized = isinstance(term, ast.Call) and name_of(term.func) == "len"
    return isinstance(term, ast.Compare) or negated or sized or is_number(term)


def is_unordered(line: ast.stmt) -> bool:
    """Return whether a line of a loop does the same in any order: it deletes or adds."""
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
        call = line.value
        deletes = name_of(call.func) == "pop" and len(call.args) == 2
        return name_of(call.func) in UNORDERED_DEEDS or deletes
    return isinstance(line, ast.Delete)


def orders_of_sets(path: str, tree: ast.Module) -> list[str]:
    """Return the places of a file whose result depends on the order of a set."""
    return Finder(path, tree).found
