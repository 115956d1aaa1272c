"""Write docs/events.md from the schema in prorsa/events.py; with ``--check`` only say whether it is up to date."""

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from prorsa import events

PAGE = Path(__file__).parent.parent / "docs" / "events.md"
HEAD = f"""# Event reference

Generated from `prorsa/events.py` by `scripts/event_reference.py`; schema version {events.SCHEMA_VERSION}.

Every event is a msgpack map with its `type` and the fields below; all may have `trajectory_id`. On the bus a publisher
sends batches `[source, run_id, [[ts_ns, event], …]]`, and the hub stamps each event as `[hub_seq, t_ns, source, seq,
ts_ns, event]` ([bus.md](bus.md)). Fields marked • are required; all others default to what is shown, and `null` means
unknown. Fields ending in `_ns` are nanoseconds on the run clock (`ts_ns`: the sender's wall clock), in `_s` seconds.
Decoding is strict: an unknown field, a missing one, or a wrong type is refused with the event's and the field's name.
"""


def main() -> int:
    """Write the page, or compare it."""
    page = render()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == page:
            return 0
        print(f"{PAGE} is not what the schema says: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(page)
    return 0


def render() -> str:
    """The whole page."""
    parts = [HEAD, "## Events\n"]
    parts += [_section(f"`{name}`", cls, skip=("trajectory_id",)) for name, cls in events.EVENT_TYPES.items()]
    parts.append("## Parts of events\n")
    parts += [_section(f"{cls.__name__}", cls) for cls in _parts()]
    return "\n".join(parts)


def _section(title: str, cls: type[Struct], skip: tuple[str, ...] = ()) -> str:
    doc = " ".join((cls.__doc__ or "").split())
    rows = [_row(field) for field in msgspec.structs.fields(cls) if field.name not in skip]
    table = "\n".join(["| field | type | default |", "|---|---|---|", *rows]) if rows else "No fields of its own."
    return f"### {title}\n\n{doc}\n\n{table}\n"


def _row(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not NODEFAULT:
        default = f"`{_literal(field.default)}`"
    elif field.default_factory is not NODEFAULT:
        default = f"`{_literal(field.default_factory())}`"
    else:
        default = "•"
    return f"| `{field.name}` | {_type(field.type)} | {default} |"


def _literal(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _type(kind: Any) -> str:
    """A type in words that a reader of another language understands."""
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    if kind in names:
        return names[kind]
    if isinstance(kind, type) and issubclass(kind, Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if isinstance(kind, msgspec.Meta) or not get_args(kind):
        return str(kind)
    return _generic(kind)


def _generic(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if str(origin) == "typing.Literal":
        return " \\| ".join(f"`{arg}`" for arg in args)
    if hasattr(kind, "__metadata__"):
        return _type(args[0]) + _bounds(kind.__metadata__)
    if origin is tuple:
        items = [arg for arg in args if arg is not Ellipsis]
        inside = ", ".join(map(_type, items))
        return f"list of {inside}" if len(items) < len(args) else f"[{inside}]"
    if origin is dict:
        return f"map of {_type(args[0])} to {_type(args[1])}"
    return " \\| ".join(_type(arg) for arg in args if arg is not type(None))


def _bounds(metadata: tuple[Any, ...]) -> str:
    (meta,) = metadata
    if meta.le is not None:
        return f" {meta.ge} to {meta.le}"
    if meta.ge is not None:
        return f" ≥ {meta.ge}"
    return ""


def _parts() -> list[type[Struct]]:
    return [
        value
        for value in vars(events).values()
        if isinstance(value, type)
        and issubclass(value, Struct)
        and value.__module__ == events.__name__
        and not issubclass(value, events.Event)
        and value not in (events.Batch, events.Stamped)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
