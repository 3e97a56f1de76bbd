"""Write the blocking classes from the asyncio classes: `python client/generate_sync.py [file]`.

Each public method of the asyncio classes becomes a method of the same name, arguments and docstring, which does its work on
the client's loop thread. The tables below say what differs: methods with a faster way, or that run the program's own code,
hand over to the hand-written parts in the other files of `sync/`. Those parts never import the classes written here.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOM = Path(__file__).resolve().parent / "pulsar_txn" / "client"
TARGET = ROOM / "sync" / "classes.py"
NAMES = (
    "Transaction",
    "ManagedTransaction",
    "CheckGroup",
    "Producer",
    "TransactionalProducer",
    "Consumer",
    "TransactionalBatch",
    "TransactionalBatchBlock",
    "Reader",
    "ConsistentReader",
    "TableView",
    "Coordinator",
    "Client",
)
GENERIC = {
    "Producer",
    "TransactionalProducer",
    "Consumer",
    "Reader",
    "ConsistentReader",
    "TableView",
    "TransactionalBatch",
    "TransactionalBatchBlock",
}

BLOCKING = {"txn", "producer", "consumer"}
"""Parameters that are handed on as the asyncio object of a blocking one."""

PARTS = {
    "Producer": ("own: OwnCode | None = None", "self._sending = Sending(loop, inner_object, own or OwnCode(), self)"),
    "TransactionalProducer": (
        "half_messages: HalfMessageSender, producer: Producer[T]",
        """self._producer = producer
        self._half_messages = HalfSending(loop, half_messages, producer, Producer, functools.partial(Transaction, loop))""",
    ),
    "Consumer": ("", "self._receiving = Receiving(loop, inner_object)"),
    "Reader": ("", "self._reading = Reading(loop, inner_object)"),
    "ManagedTransaction": ("", "self._around = Surroundings()"),
    "TransactionalBatchBlock": ("", "self._around = Surroundings()"),
    "TransactionalBatch": (
        "",
        """self.messages = inner_object.messages
        self.txn = Transaction(loop, inner_object.txn)
        self.consumer: Consumer[T] = Consumer(loop, inner_object.consumer)""",
    ),
}
"""The hand-written parts of a class: a further argument of its constructor, and how they are made."""

MORE = "more = key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition"
NEXT = "try:\n            return self.{}()\n        except AlreadyClosed:\n            raise StopIteration from None"
OBSERVE = "self._lifetime.observe(self._inner.{}_observer, observer, functools.partial(Transaction, self._loop))"
REPEATED = (
    "pauses = backoff or growing_pauses(self._inner)\n"
    "        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=pauses)\n"
    "        block = functools.partial(self.transaction, timeout=timeout, name=name, ambient=ambient)\n"
    "        return run_transaction(self._loop, block, work, left)"
)
LIVING = {
    "__aenter__": "self._lifetime.check_open()\n        return self",
    "close": "self._lifetime.close()",
    "run_transaction": REPEATED,
    "join_check_group": "join = functools.partial(self._inner.join_check_group, group, threaded(check))\n"
    "        heard = threaded_hearing(on_decided)\n"
    "        return CheckGroup(\n            self._loop,\n            self._loop.run(\n"
    "                lambda: join(concurrency=concurrency, check_timeout=check_timeout, on_decided=heard)\n"
    "            ),\n        )",
    "add_observer": OBSERVE.format("add"),
    "remove_observer": OBSERVE.format("remove"),
}
"""Common properties of clients and coordinators."""

LEAVE = "self._around.leave()\n        return self._loop.run(lambda: self._inner.__aexit__(kind, error, traceback))"
BODIES = {
    "Transaction.send": "return producer.send(value, txn=self, **options)",
    "Transaction.acknowledge": "consumer.acknowledge(message, txn=self)",
    "ManagedTransaction.__aenter__": "txn = self._loop.run(self._inner.__aenter__)\n"
    "        self._around.enter(unit_of(txn), joins=self._inner.ambient)\n        return Transaction(self._loop, txn)",
    "ManagedTransaction.__aexit__": "self._around.leave()\n"
    "        swallowed: bool = from_here(self._loop.run, lambda: self._inner.__aexit__(kind, error, traceback))\n"
    "        return swallowed",
    "Transaction.commit": "from_here(self._loop.run, lambda: self._inner.commit(timeout=timeout))",
    "TransactionalBatchBlock.__aenter__": "batch = self._loop.run(self._inner.__aenter__)\n"
    "        self._around.enter(unit_of(batch.txn), joins=self._inner.ambient)\n"
    "        return TransactionalBatch(self._loop, batch)",
    "TransactionalBatchBlock.__aexit__": LEAVE,
    "Producer.send": f"{MORE}\n        return self._sending.send(value, inner(txn), more)",
    "Producer.send_nowait": f"{MORE}\n        return self._sending.send_nowait(value, inner(txn), more)",
    "Producer.send_encoded": "return self._sending.send_encoded(batch, inner(txn), key, partition)",
    "Producer.send_encoded_nowait": "return self._sending.send_encoded_nowait(batch, inner(txn), key, partition)",
    "Producer.wait_for_room": "self._sending.wait_for_room()",
    "TransactionalProducer.producer": "return self._producer",
    "TransactionalProducer.send_in_transaction": "first = HalfMessage(\n            value, key=key, ordering_key=ordering_key, "
    "properties=properties, event_time_ms=event_time_ms\n        )\n"
    "        return self._half_messages.send(first, also, data, execute)",
    "Consumer.receive": "return self._receiving.receive(timeout, inner(txn))",
    "Consumer.receive_many": "return self._receiving.receive_many(max_messages, max_wait, inner(txn))",
    "Consumer.receive_nowait": "return self._receiving.receive_nowait(max_messages, inner(txn))",
    "Consumer.messages": "while True:\n            try:\n                message = self.receive(txn=txn)\n"
    "            except AlreadyClosed:\n                return\n            yield message",
    "Consumer.acknowledge": "self._receiving.acknowledge(message, inner(txn), receipt)",
    "Consumer.acknowledge_cumulative": "self._receiving.acknowledge_cumulative(message, inner(txn), receipt)",
    "Consumer.__anext__": NEXT.format("receive"),
    "TransactionalBatch.__len__": "return len(self.messages)",
    "TransactionalBatch.__getitem__": "return self.messages[index]",
    "Reader.read_next": "return self._reading.read_next(timeout)",
    "Reader.read_many": "return self._reading.read_many(max_messages, max_wait)",
    "Reader.__anext__": NEXT.format("read_next"),
    "ConsistentReader.messages": "while True:\n            try:\n                cut = self.next_cut()\n"
    "            except AlreadyClosed:\n                return\n            yield from cut.messages",
    "ConsistentReader.__anext__": NEXT.format("next_cut"),
    "TableView.for_each": "for key, value in self.snapshot().items():\n            action(key, value)",
    "TableView.for_each_and_listen": "heard = functools.partial(self._loop.callbacks.hear, action)\n"
    "        self._loop.run(lambda: self._inner.for_each_and_listen(heard))",
    "Client.create_producer": "return Producer(self._loop, *self._factory.producer(topic, schema, {options}))",
    "Client.transactional_producer": "heard = threaded_hearing(on_decided)\n        parts = transactional_over(\n"
    "            self._loop,\n            self._inner,\n"
    "            lambda asked: HalfTerms(group, asked, check_after, timeout, concurrency, prepare, check_timeout, heard),\n"
    "            check,\n"
    "            lambda: self.create_producer(topic, schema=schema, **options),\n        )\n"
    "        return TransactionalProducer(self._loop, *parts)",
    "Client.subscribe": "blocking: Callable[[Any], Consumer[Any]] = functools.partial(Consumer, self._loop)\n"
    "        return self._factory.consumer(topic, subscription, schema, {options}, blocking)",
    "Client.create_reader": "given = {options} | {{'schema': schema}}\n"
    "        given |= {{'start_inclusive': start_inclusive, 'reader_name': reader_name}}\n"
    "        return Reader(self._loop, self._factory.reader(topic, start, given))",
    "Client.consistent_reader": "given = {options} | {{'schema': schema, 'max_ahead': max_ahead}}\n"
    "        given |= {{'max_cut_messages': max_cut_messages, 'max_cut_bytes': max_cut_bytes}}\n"
    "        given |= {{'check_interval': check_interval}}\n"
    "        return ConsistentReader(self._loop, self._factory.consistent_reader(topics, start, given))",
    "Client.create_table_view": "return TableView(self._loop, self._factory.table_view(topic, schema, {options}))",
    "Client.pipeline": "if not isinstance(consumer, Consumer):\n"
    '            raise refused("consumer", consumer, "a consumer of this client")\n'
    '        chosen = options_of(PipelineOptions, options, "pipeline")\n'
    "        told = None if observer is None else functools.partial(self._loop.callbacks.tell, observer)\n"
    "        run = functools.partial(self._inner.pipeline, inner(consumer), observer=told, **options)\n"
    "        batch = functools.partial(TransactionalBatch, self._loop)\n"
    "        return run_pipeline(self._loop, run, handler, batch, stop, chosen.concurrency, ambient=chosen.ambient)",
    "Client.add_interceptors": "self._factory.interceptors.add(interceptors)",
    **{f"{owner}.{method}": body for owner in ("Coordinator", "Client") for method, body in LIVING.items()},
}
"""Body of a method that does not call the asyncio method on the loop. `{options}`: its keyword arguments as a dict."""

ARGUMENTS = {
    "Transaction.acknowledge.message": "Acknowledged | Sequence[Acknowledged]",
    "Coordinator.join_check_group.check": "Callable[[CheckQuestion], LocalOutcome]",
    "Client.join_check_group.check": "Callable[[CheckQuestion], LocalOutcome]",
    "Client.transactional_producer.check": "Callable[[CheckQuestion], LocalOutcome] | CheckGroup",
    "Coordinator.join_check_group.on_decided": "Callable[[CheckDecision], object] | None",
    "Client.join_check_group.on_decided": "Callable[[CheckDecision], object] | None",
    "Client.transactional_producer.on_decided": "Callable[[CheckDecision], object] | None",
    "TransactionalProducer.send_in_transaction.execute": "Callable[[HalfSent], LocalOutcome]",
    "Coordinator.run_transaction.work": "Callable[[Transaction], T]",
    "Client.run_transaction.work": "Callable[[Transaction], T]",
    "Client.pipeline.handler": "Callable[[TransactionalBatch[T]], object]",
    "Client.pipeline.stop": "Stop | None",
}
"""Annotations of arguments that are of another kind here."""

CLOSING = (
    "Calls of observers, interceptors and callbacks that are due are waited for as well. KeyboardInterrupt ends the waiting:"
    " it is closed at once, and KeyboardInterrupt is raised. No effect in a forked child."
)
CHECKING = (
    "`check` runs in threads of its own, `concurrency` at a time, so it may block. One that takes longer than `check_timeout`"
    " goes on in its thread, beside the others; what it returns then is the answer to the next question about its transaction."
)
DOCS = {
    "Consumer.acknowledge": "What nobody has to wait for (no transaction, no receipt) is left to the client's thread, and this"
    " returns at once.",
    "Producer.send": "Interceptors, schema and router run in this thread.",
    "Producer.send_nowait": "Callbacks of the future run on the client's thread for callbacks, in the order of the receipts."
    " ProducerQueueFull is also raised while ten thousand callbacks wait.",
    "TransactionalProducer.send_in_transaction": "`execute` runs in the thread that calls. The transaction in `HalfSent` is a"
    " blocking one.",
    "Coordinator.join_check_group": CHECKING,
    "Client.join_check_group": CHECKING,
    "Coordinator.close": CLOSING,
    "Coordinator.run_transaction": "`work` runs in the thread that calls.",
    "Client.close": CLOSING,
    "Client.run_transaction": "`work` runs in the thread that calls.",
    "Client.pipeline": "`stop` is a `threading.Event`, or anything else that has `is_set()`. The handler is a plain function:"
    " it is called in this thread, with `concurrency` also in as many threads less one beside it. Messages, receipts and"
    " keep-alive go on meanwhile. The observer is called on the client's thread for callbacks. KeyboardInterrupt ends the"
    " pipeline at once, wherever it is.",
}
"""Additional docstring of a method."""

PROTOCOLS = {
    "Acknowledges[Given]": "Consumer[Any]",
    "Sends[": "Producer[",
    "SendTicket": "Future[MessageId]",
    "AsyncIterator[": "Iterator[",
}
"""Annotations of the asyncio classes that have another name here."""

LEFT_OUT = re.compile(
    r"\s*(?:If cancelled|Safe to cancel|It may be a coroutine function|A plain function runs on)[^.]*\.(?=\s|$)"
)
"""Sentences of docstrings about what threads do not have: nothing can be cancelled."""

REWORDED = {
    "Safe to cancel and to repeat": "Safe to repeat",
    "`async with ": "`with ",
    "`async with`": "`with`",
    "`async for ": "`for ",
    "`await ": "`",
    "Async context manager": "Context manager",
    "an async context manager": "a context manager",
    "async iterator": "iterator",
    "for asyncio": "for threads",
    "awaited or not": "looked at or not",
    "`loop.time()`": "`time.monotonic()`",
    "take part, also those of tasks that are started there;": "take part, in this thread;",
}
ATTRIBUTES = {
    "Consumer": {
        "subscription": ("str", "The subscription's name."),
        "consumer_name": ("str", "The name given, or one that was made up."),
        "schema": ("Schema[T]", "Schema by which values are decoded."),
    }
}
"""Attributes of an asyncio object that its constructor sets."""

RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
DUNDERS = {*RENAMED, "__len__", "__getitem__"}
DUNDER_DOCS = {"__aenter__": "Enter the block.", "__aexit__": "Leave the block.", "__anext__": "The next message."}
OF_ASYNCIO = re.compile(rf"\bAsync({'|'.join(NAMES)})\b")

HEADER = '''"""The blocking classes, written by `client/generate_sync.py` from the asyncio classes. Do not edit."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeVar

{imports}
from pulsar_txn.client._validation import refused
from pulsar_txn.client.txn.transactions import Attempts, growing_pauses
from pulsar_txn.client.txn.check_groups import CheckDecision
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.net.runtime import Future
from pulsar_txn.client.send.half_messages import HalfMessageSender, HalfTerms
from pulsar_txn.client.sync.check_groups import HalfSending, threaded, threaded_hearing, transactional_over
from pulsar_txn.client.sync.lifetime import LoopLifetime, ResourceFactory, client_on_loop, coordinator_on_loop
from pulsar_txn.client.sync.receiving import Reading, Receiving
from pulsar_txn.client.sync.sending import OwnCode, Sending
from pulsar_txn.client.sync.blocking import GenericBlocking, SyncLoop, Blocking, inner
from pulsar_txn.client.sync.units import Stop, run_pipeline, run_transaction
from pulsar_txn.client.txn.transaction import Surroundings
from pulsar_txn.client.txn.forgotten import from_here
from pulsar_txn.client.txn.transaction import unit_of

T = TypeVar("T")
'''
INIT = """
    def __init__(self, loop: SyncLoop, inner_object: {kind}{argument}) -> None:
        super().__init__(loop, inner_object)
        {parts}
"""
CLIENT_INIT = '''
    def __init__({arguments}) -> None:
        """Arguments as those of `AsyncClient`; raises InvalidConfiguration. Its thread starts with the first use.

        So a client that was made before a fork works in the child where it is used first.
        """
        loop, client = client_on_loop(locals())
        super().__init__(loop, client)
        self._lifetime = LoopLifetime(loop, client)
        self._factory = ResourceFactory(loop, client)
'''
COORDINATOR_INIT = '''
    def __init__({arguments}) -> None:
        """Arguments as those of `AsyncCoordinator`; raises InvalidConfiguration.

        Its thread starts with the first use, also by a client that shares it, and works for all of them.
        """
        loop, coordinator = coordinator_on_loop(locals())
        super().__init__(loop, coordinator)
        self._lifetime = LoopLifetime(loop, coordinator)
'''
INITS = {"Client": CLIENT_INIT, "Coordinator": COORDINATOR_INIT}
"""Constructors of what programs make themselves."""


class Source(NamedTuple):
    """An asyncio class and the file that it is in."""

    module: str
    tree: ast.Module
    cls: ast.ClassDef


def generate() -> str:
    """The text of the blocking classes."""
    found = {name: _with_parents(f"Async{name}") for name in NAMES}
    sources = {source.module: source for each in found.values() for source in each}
    header = HEADER.format(imports="\n".join(_imports(sources.values())))
    parts = [header, *(_blocking_class(name, [source.cls for source in found[name]]) for name in NAMES)]
    names = ", ".join(f'"{name}"' for name in sorted(NAMES))
    parts.append(f"\n\n__all__ = [{names}]\n")
    return _formatted("".join(parts))


@functools.cache
def _sources() -> dict[str, Source]:
    """The classes of the client's rooms below this one, by name."""
    found: dict[str, Source] = {}
    for file in sorted(ROOM.rglob("*.py")):
        module = ".".join(file.relative_to(ROOM.parent.parent).with_suffix("").parts)
        if TARGET.parent not in file.parents:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= {node.name: Source(module, tree, node) for node in tree.body if isinstance(node, ast.ClassDef)}
    return found


def _with_parents(name: str) -> list[Source]:
    """A class and its parents that are ours, which users take for one class."""
    source = _sources()[name]
    parents = [base.value.id if isinstance(base, ast.Subscript) else getattr(base, "id", "") for base in source.cls.bases]  # type: ignore[attr-defined]  # a subscripted name
    return [source, *(each for parent in parents if parent in _sources() for each in _with_parents(parent))]


def _imports(sources: Iterable[Source]) -> list[str]:
    """Imports of all that annotations may name, where it is defined if that is here; those without a use go at the end."""
    defined: dict[str, str] = {}
    imported: dict[str, str] = {}
    for module, tree, _ in sources:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                imported |= {
                    each.asname or each.name: ast.unparse(ast.ImportFrom(node.module, [each], 0)) for each in node.names
                }
            elif isinstance(node, ast.Import):
                imported |= {each.asname or each.name: ast.unparse(ast.Import([each])) for each in node.names}
        for statement in tree.body:
            targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
            names = [getattr(each, "id", getattr(each, "name", "_")) for each in targets]
            defined |= {name: f"from {module} import {name}" for name in names if not name.startswith("_")}
    ours = set(re.findall(r"\w+", HEADER)) | {"P", "logger"}
    return sorted(line for name, line in (imported | defined).items() if name not in ours)


def _blocking_class(name: str, classes: list[ast.ClassDef]) -> str:
    doc = _reworded((ast.get_docstring(classes[0]) or "").split("\n")[0])
    kind = f"Async{name}[T]" if name in GENERIC else f"Async{name}"
    base = f"GenericBlocking[{kind}, T]" if name in GENERIC else f"Blocking[{kind}]"
    if name == "TransactionalBatch":
        base += ", Sequence[Message[T]]"
    nodes = [node for cls in classes for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    text = f'\n\nclass {name}({base}):\n    """{doc}"""\n'
    if name in INITS:
        init = next(node for node in nodes if node.name == "__init__")
        text += INITS[name].format(arguments=_signature(name, init))
    elif name in PARTS:
        argument, parts = PARTS[name]
        text += INIT.format(kind=kind, argument=f", {argument}" if argument else "", parts=parts)
    for each, (returns, says) in ATTRIBUTES.get(name, {}).items():
        text += (
            f'\n    @property\n    def {each}(self) -> {returns}:\n        """{says}"""\n        return self._inner.{each}\n'
        )
    return text + "".join(_method(name, node) for node in nodes if _is_public(node.name))


def _is_public(method: str) -> bool:
    return method in DUNDERS or not method.startswith("_")


def _method(cls: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [text for each in node.decorator_list if (text := ast.unparse(each)) not in {"marked", "opens"}]
    name = RENAMED.get(node.name, node.name)
    returns = _annotation(node.returns)
    text = "".join(f"\n    @{each}" for each in decorators)
    text += f"\n    def {name}({_signature(cls, node)}) -> {returns}:"
    if "overload" in decorators:
        return text + " ...\n"
    doc = _reworded(ast.get_docstring(node) or DUNDER_DOCS.get(node.name, ""))
    if f"{cls}.{node.name}" in DOCS:
        doc += "\n\n" + textwrap.fill(DOCS[f"{cls}.{node.name}"], 119)
    text += f'\n        """{_indented(doc)}"""' if doc else ""
    return f"{text}\n        {_body(cls, node, decorators, returns)}\n"


def _reworded(doc: str) -> str:
    for old, new in REWORDED.items():
        doc = doc.replace(old, new)
    return LEFT_OUT.sub("", OF_ASYNCIO.sub(r"\1", doc))


def _indented(doc: str) -> str:
    return doc.replace("\n", "\n        ").replace("\n        \n", "\n\n") + ("\n        " if "\n" in doc else "")


def _body(cls: str, node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[str], returns: str) -> str:
    if f"{cls}.{node.name}" in BODIES:
        body = BODIES[f"{cls}.{node.name}"]
        return body.format(options=_options(node)) if "{options}" in body else body
    if node.name == "__aiter__":
        return "return self"
    if node.name == "__aexit__":
        return "self.close()"
    if "property" in decorators:
        return f"return self._inner.{node.name}"
    if returns == "NoReturn":
        return f"self._inner.{node.name}()\n        raise AssertionError"
    arguments = _arguments(node)
    call = f"lambda: self._inner.{node.name}({arguments})" if arguments else f"self._inner.{node.name}"
    how = "run" if _is_asynchronous(node) else "submit" if returns.startswith("Future") else "call"
    result = f"self._loop.{how}({call})"
    if returns == "Self":
        return f"{result}\n        return self"
    if returns.split("[")[0] in NAMES:
        result = f"{returns}(self._loop, {result})"
    elif returns == "tuple[Transaction, ...]":
        result = f"tuple(Transaction(self._loop, each) for each in {result})"
    return f"{'' if returns == 'None' else 'return '}{result}"


def _options(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The keyword arguments that a factory hands on: those without a place of their own in its body."""
    return f"{{**{node.args.kwarg.arg}}}" if node.args.kwarg is not None else "{}"


def _signature(cls: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]  # a copy of a function is a function
    for each in [*arguments.args, *arguments.kwonlyargs, arguments.kwarg]:
        if each is not None and each.annotation is not None:
            text = ARGUMENTS.get(f"{cls}.{node.name}.{each.arg}") or _annotation(each.annotation)
            each.annotation = ast.parse(text, mode="eval").body
    return ast.unparse(arguments)


def _is_asynchronous(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(node, ast.AsyncFunctionDef) or ast.unparse(node.returns or node).startswith("Coroutine[")


def _annotation(node: ast.expr | None) -> str:
    text = "None" if node is None else ast.unparse(node)
    text = re.sub(r"^(?:Coroutine\[Any, Any, |Opened\[|Awaitable\[)(.*)\]$", r"\1", text)
    text = OF_ASYNCIO.sub(r"\1", text)  # what our own classes hand out
    for protocol, blocking in PROTOCOLS.items():
        text = text.replace(protocol, blocking)
    return text


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    parts = [f"inner({each.arg})" if each.arg in BLOCKING else each.arg for each in node.args.args[1:]]
    parts += [f"{each.arg}={f'inner({each.arg})' if each.arg in BLOCKING else each.arg}" for each in node.args.kwonlyargs]
    if node.args.kwarg is not None:
        parts.append(f"**{node.args.kwarg.arg}")
    return ", ".join(parts)


def _formatted(text: str) -> str:
    fix = ["check", "--fix", "--quiet", "--exit-zero", "--select"]
    for command in ([*fix, "F401"], [*fix, "I"], ["format", "--quiet"]):
        program = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(program, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own tool
    return text


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(generate(), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
