"""Renders structures, closed sets, commands and metrics of the code as Markdown."""

import enum
import inspect
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec
from msgspec import inspect as shapes

HELP_COLUMNS = 100


class WordsError(ValueError):
    """A field without words, or words without a field."""


def cell(text: str) -> str:
    """Return a text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(cell(each) for each in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def said(thing: type) -> str:
    """Return the docstring of a class as running text."""
    return " ".join((inspect.getdoc(thing) or "").split())


def fields_of(struct: type) -> tuple[shapes.Field, ...]:
    """Return the fields of a structure as they stand in JSON."""
    info = shapes.type_info(struct)
    assert isinstance(info, shapes.StructType), struct
    return info.fields


def bare(info: shapes.Type) -> shapes.Type:
    """Return a type without its description."""
    return info.type if isinstance(info, shapes.Metadata) else info


def description_of(info: shapes.Type) -> str:
    """Return the description that the code itself gives a field, empty if none."""
    extra = info.extra_json_schema if isinstance(info, shapes.Metadata) else None
    return str((extra or {}).get("description", ""))


def type_words(info: shapes.Type) -> str:
    """Return a type in words, with its range."""
    match bare(info):
        case shapes.IntType() as number:
            return "integer" + _range(number)
        case shapes.FloatType() as number:
            return "number" + _range(number)
        case shapes.StrType() as text:
            return f"text matching `{text.pattern}`" if text.pattern else "text"
        case shapes.BoolType():
            return "true or false"
        case shapes.NoneType():
            return "null"
        case shapes.EnumType() as closed:
            return members(closed.cls)
        case shapes.StructType() as struct:
            return struct.cls.__name__
        case shapes.VarTupleType() | shapes.ListType() as many:
            return f"list of {type_words(many.item_type)}"
        case shapes.TupleType() as few:
            return f"[{', '.join(type_words(each) for each in few.item_types)}]"
        case shapes.DictType() as mapping:
            return f"object: {type_words(mapping.value_type)} by name"
        case shapes.UnionType() as union:
            return " or ".join(type_words(each) for each in union.types)
        case other:
            raise WordsError(f"no words for {other}")


def members(closed: type[enum.Enum]) -> str:
    """Return the members of a closed set; numbers stand in JSON, so their names are added."""
    numbers = issubclass(closed, int)
    return ", ".join(
        f"{each.value} ({each.name.lower()})" if numbers else f"`{each.value}`" for each in closed
    )


def _range(number: shapes.IntType | shapes.FloatType) -> str:
    parts = [
        f"{words} {limit}"
        for words, limit in (
            ("at least", number.ge),
            ("above", number.gt),
            ("at most", number.le),
            ("below", number.lt),
        )
        if limit is not None
    ]
    return f", {', '.join(parts)}" if parts else ""


def default_words(field: shapes.Field) -> str:
    """Return a field's default as JSON; `required` without one, `none` for an empty collection."""
    if field.default is not msgspec.NODEFAULT:
        value = msgspec.to_builtins(field.default)
    elif field.default_factory is not msgspec.NODEFAULT:
        value = msgspec.to_builtins(field.default_factory())
    else:
        return "required"
    if isinstance(value, dict | list | tuple) and not value:
        return "none"
    if isinstance(value, dict):
        return "its own defaults"
    return f"`{msgspec.json.encode(value).decode()}`"


def struct_table(struct: type, words: Mapping[str, str], *, defaults: bool = True) -> str:
    """Return the fields of a structure; raises `WordsError` if the words do not fit them."""
    fields = fields_of(struct)
    told = {field.encode_name for field in fields}
    if told != set(words):
        differ = ", ".join(sorted(told ^ set(words)))
        raise WordsError(
            f"{struct.__name__}: fields and words differ in {differ}; see scripts/docs_words.py"
        )
    rows = [
        [
            f"`{field.encode_name}`",
            words[field.encode_name],
            _type_cell(field),
            *([default_words(field)] if defaults else []),
        ]
        for field in fields
    ]
    return table(["field", "what", "type", *(["default"] if defaults else [])], rows)


def shape_table(struct: type, *, defaults: bool = True) -> str:
    """Return the fields of a structure with their types alone; what they mean stands in its docstring."""
    rows = [
        [
            f"`{field.encode_name}`",
            _type_cell(field),
            *([default_words(field)] if defaults else []),
        ]
        for field in fields_of(struct)
    ]
    return table(["field", "type", *(["default"] if defaults else [])], rows)


def _type_cell(field: shapes.Field) -> str:
    info = bare(field.type)
    if isinstance(info, shapes.StructType) and info.cls.__name__ == "Revision":
        return "Revision"
    return type_words(field.type)


def setting_rows(
    struct: type, words: Mapping[str, str], *, inline: bool = False
) -> list[list[str]]:
    """Return key, description, range and default of a section's own settings.

    `inline`: also those that are tables themselves, which in a list have no section of their own.
    """
    return [
        [
            f"`{field.encode_name}`",
            description_of(field.type) or words[field.encode_name],
            _value_words(field.type),
            default_words(field),
        ]
        for field in fields_of(struct)
        if inline or not isinstance(bare(field.type), shapes.StructType)
    ]


def _value_words(info: shapes.Type) -> str:
    inner = bare(info)
    if isinstance(inner, shapes.StructType):
        keys = (f"`{each.encode_name}`: {type_words(each.type)}" for each in inner.fields)
        return f"table of {', '.join(keys)}"
    return type_words(info)


def sections_of(config: type) -> Iterator[tuple[str, type]]:
    """Yield every section with its dotted name, outer ones first; that of a list in brackets of its own."""
    for field in fields_of(config):
        info, own = bare(field.type), field.encode_name
        match info:
            case shapes.StructType():
                yield own, info.cls
                for name, inner in sections_of(info.cls):
                    yield f"[{own}.{name[1:]}" if name[0] == "[" else f"{own}.{name}", inner
            case shapes.VarTupleType(item_type=shapes.StructType() as one):
                yield f"[{own}]", one.cls
            case _:
                # A key of the section itself.
                continue


def toml_of(value: Mapping[str, object], name: str = "") -> str:
    """Return settings as TOML; null has no form there, so such keys are left out."""
    own = {key: each for key, each in value.items() if not isinstance(each, dict)}
    lines = [f"[{name}]"] if name else []
    lines += [
        f"{key} = {msgspec.json.encode(each).decode()}"
        for key, each in own.items()
        if each is not None
    ]
    parts = ["\n".join(lines) + "\n"] if lines else []
    for key, each in value.items():
        if isinstance(each, dict):
            parts.append(toml_of(each, f"{name}.{key}" if name else key))
    return "\n".join(parts)


def command_helps(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (full name, help) of a command and of everything below it."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=HELP_COLUMNS,
        max_content_width=HELP_COLUMNS,
    )
    context.help_option_names = ["-h", "--help"]
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None, each
            yield from command_helps(inner, each, context)


def metric_rows(page: str) -> list[list[str]]:
    """Return name, kind, labels and help of every family of a page in the Prometheus text format."""
    helps: dict[str, str] = {}
    rows: list[list[str]] = []
    lines = page.splitlines()
    for line in lines:
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            helps[words[2]] = words[3]
        elif line.startswith("# TYPE ") and not words[2].endswith("_created"):
            labels = _labels_of(words[2], lines)
            rows.append([f"`{words[2]}`", helps[words[2]], words[3], labels or "none"])
    return rows


def _labels_of(name: str, lines: Sequence[str]) -> str:
    samples = [line for line in lines if line.startswith((f"{name}{{", f"{name}_count{{"))]
    if not samples:
        return ""
    inside = samples[0].partition("{")[2].rpartition("}")[0]
    return ", ".join(f"`{part.partition('=')[0]}`" for part in inside.split('",'))
