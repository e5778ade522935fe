"""/openapi.json as one plain page: every route with its fields and a command to try it.

    page(openapi) = title, then each route (fields, example, answers), then each named shape (fields)

The page that comes with the web framework loads scripts from another host; this one is text and needs none at all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from html import escape
from typing import Any

Schema = dict[str, Any]

METHODS = ("get", "post", "put", "patch", "delete")
DEPTH = 4  # shapes inside shapes that an example goes into: some contain themselves

_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": False, "null": None}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def page(openapi: Schema) -> str:
    """The page of an OpenAPI description, as HTML."""
    info = openapi.get("info", {})
    title = escape(f"{info.get('title', 'API')} {info.get('version', '')}".strip())
    operations = list(_operations(openapi))
    parts = [
        f"<h1>{title}</h1>",
        _paragraph(info.get("description")),
        "<p>Where the server has keys, add <code>-H 'Authorization: Bearer KEY'</code> to every command. "
        "The same as data: <a href='/openapi.json'>/openapi.json</a>.</p>",
        "<nav><ul>",
        *(f"<li><a href='#{_anchor(method, path)}'>{_name(method, path)}</a></li>" for method, path, _ in operations),
        "</ul></nav>",
        *(_operation(openapi, method, path, operation) for method, path, operation in operations),
        *(_shape(name, schema) for name, schema in _shapes(openapi).items()),
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<meta name='color-scheme' content='light dark'>\n<title>{title}</title>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _operations(openapi: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, item in openapi.get("paths", {}).items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _shapes(openapi: Schema) -> dict[str, Schema]:
    shapes: dict[str, Schema] = openapi.get("components", {}).get("schemas", {})
    return shapes


def _operation(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """One route: what it does, what it takes, how to call it, what it answers."""
    body = _content(operation.get("requestBody", {}))
    fields = [
        (parameter["name"], {"description": parameter.get("description", ""), **parameter.get("schema", {})}, required)
        for parameter in operation.get("parameters", [])
        for required in [parameter.get("required", False)]
    ]
    answers = [_answer(code, answer) for code, answer in operation.get("responses", {}).items()]
    parts = [
        f"<section id='{_anchor(method, path)}'>\n<h2>{_name(method, path)}</h2>",
        _paragraph(operation.get("description") or operation.get("summary")),
        _table(fields),
        f"<p>Body: {_kind(body)}</p>" if body else "",
        _table(_properties(body)) if body else "",
        f"<pre><code>{escape(command(openapi, method, path, operation))}</code></pre>",
        "\n".join(["<p>Answers:</p>", "<ul>", *answers, "</ul>"]) if answers else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _answer(code: str, answer: Schema) -> str:
    body = _content(answer)
    return f"<li>{escape(code)}: {escape(answer.get('description', ''))} {_kind(body) if body else ''}</li>"


def _shape(name: str, schema: Schema) -> str:
    heading = f"<section id='shape-{escape(name)}'>\n<h3>{escape(name)}</h3>"
    fields = _table(_properties(schema)) or f"<p>{_kind(schema)}</p>"
    return "\n".join([heading, _paragraph(schema.get("description")), fields, "</section>"])


def _properties(schema: Schema) -> list[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    return [(name, field, name in required) for name, field in schema.get("properties", {}).items()]


def _table(fields: list[tuple[str, Schema, bool]]) -> str:
    """A row for each field: name, what it may be, what it is if left out, what it means."""
    if not fields:
        return ""
    rows = []
    for name, schema, required in fields:
        default = "required" if required else escape(json.dumps(schema.get("default"), ensure_ascii=False))
        cells = [f"<code>{escape(name)}</code>", _kind(schema), default, escape(schema.get("description", ""))]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>field</th><th>what it may be</th><th>if left out</th><th>meaning</th></tr>"
    return f"<table>\n{head}\n" + "\n".join(rows) + "\n</table>"


def _kind(schema: Schema) -> str:
    """What a value may be, in words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f"<a href='#shape-{name}'>{name}</a>"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_kind(one) for one in schema[several])
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    type = schema.get("type", "anything")
    kind = " or ".join(type) if isinstance(type, list) else str(type)
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    else:
        kind = escape(kind)
    bounds = [escape(text.format(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    return kind + (f" ({', '.join(bounds)})" if bounds else "")


def command(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """How to call a route from a shell."""
    server = (openapi.get("servers") or [{"url": "http://127.0.0.1:8000"}])[0]["url"].rstrip("/")
    words = ["curl", server + path]
    body = _content(operation.get("requestBody", {}))
    if body:
        data = json.dumps(example(openapi, body), ensure_ascii=False)
        words += ["-H", "Content-Type: application/json", "-d", data]
    elif operation.get("requestBody"):  # a file
        words += ["-H", f"Content-Type: {next(iter(operation['requestBody']['content']))}", "--data-binary", "@FILE"]
    elif method != "get":
        words += ["-X", method.upper()]
    return shlex.join(words)


def example(openapi: Schema, schema: Schema, depth: int = DEPTH) -> Any:
    """A value of a shape: its own example where it has one, else what is required, as plain as possible."""
    if "example" in schema:
        return schema["example"]
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema and depth:
        return example(openapi, _shapes(openapi).get(schema["$ref"].rsplit("/", 1)[-1], {}), depth - 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return example(openapi, schema[several][0], depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "array":
        return [example(openapi, schema.get("items", {}), depth - 1)] if depth else []
    if "properties" in schema:
        return {name: example(openapi, field, depth - 1) for name, field, needed in _properties(schema) if needed}
    return _SAMPLES.get(str(schema.get("type")), {})


def _content(holder: Schema) -> Schema:
    """The JSON shape of a request's or an answer's body, {} where there is none."""
    found: Schema = holder.get("content", {}).get("application/json", {}).get("schema", {})
    return found


def _anchor(method: str, path: str) -> str:
    return escape(method + path.replace("/", "-").replace("{", "").replace("}", ""))


def _name(method: str, path: str) -> str:
    return escape(f"{method.upper()} {path}")


def _paragraph(text: str | None) -> str:
    return f"<p>{escape(text)}</p>" if text else ""
