"""Render /openapi.json as one HTML page; FastAPI's own page loads scripts from another host."""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any

Schema = dict[str, Any]

MAX_EXAMPLE_DEPTH = 4  # of nested schemas in an example: some contain themselves

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


def render_page(openapi: Schema) -> str:
    """Render an OpenAPI description as an HTML page: contents, routes with curl commands, schemas."""
    info = openapi.get("info", {})
    title = escape(f"{info.get('title', 'API')} {info.get('version', '')}".strip())
    operations = [
        (method, path, operation) for path, item in openapi["paths"].items() for method, operation in item.items()
    ]
    parts = [
        f"<h1>{title}</h1>",
        _paragraph(info.get("description")),
        "<p>If the server has API keys, add <code>-H 'Authorization: Bearer KEY'</code> to every command. "
        "The same as data: <a href='/openapi.json'>/openapi.json</a>.</p>",
        "<nav><ul>",
        *(
            f"<li><a href='#{_anchor(method, path)}'>{_operation_name(method, path)}</a></li>"
            for method, path, _ in operations
        ),
        "</ul></nav>",
        *(_operation_section(openapi, method, path, operation) for method, path, operation in operations),
        *(_schema_section(name, schema) for name, schema in openapi["components"]["schemas"].items()),
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        "<link rel='icon' href='static/page/icon.svg' type='image/svg+xml'>\n"
        f"<meta name='color-scheme' content='light dark'>\n<title>{title}</title>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _operation_section(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Render one route: its description, fields, curl command and responses."""
    body = _json_schema(operation.get("requestBody", {}))
    fields = [(one["name"], one["schema"], one["required"]) for one in operation.get("parameters", [])]
    parts = [
        f"<section id='{_anchor(method, path)}'>\n<h2>{_operation_name(method, path)}</h2>",
        _paragraph(operation.get("description") or operation.get("summary")),
        _table(fields),
        f"<p>Body: {_type_html(body)}</p>" if body else "",
        _table(_fields(body)),
        f"<pre><code>{escape(curl_command(openapi, method, path, operation))}</code></pre>",
        "<p>Responses:</p>\n<ul>",
        *(_response_item(code, response) for code, response in operation["responses"].items()),
        "</ul>\n</section>",
    ]
    return "\n".join(part for part in parts if part)


def _response_item(code: str, response: Schema) -> str:
    body = _json_schema(response)
    return f"<li>{escape(code)}: {escape(response['description'])} {_type_html(body) if body else ''}</li>"


def _schema_section(name: str, schema: Schema) -> str:
    heading = f"<section id='schema-{escape(name)}'>\n<h3>{escape(name)}</h3>"
    fields = _table(_fields(schema)) or f"<p>{_type_html(schema)}</p>"
    return "\n".join([heading, _paragraph(schema.get("description")), fields, "</section>"])


def _fields(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Return (name, schema, whether it is required) of each property of an object."""
    required = schema.get("required", [])
    return [(name, field, name in required) for name, field in schema.get("properties", {}).items()]


def _table(fields: list[tuple[str, Schema, bool]]) -> str:
    """Render an HTML table of fields (name, type, default, meaning); '' if there are none."""
    if not fields:
        return ""
    rows = []
    for name, schema, required in fields:
        default = "required" if required else escape(json.dumps(schema.get("default"), ensure_ascii=False))
        cells = [f"<code>{escape(name)}</code>", _type_html(schema), default, escape(schema.get("description", ""))]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>field</th><th>type</th><th>default</th><th>meaning</th></tr>"
    return f"<table>\n{head}\n" + "\n".join(rows) + "\n</table>"


def _type_html(schema: Schema) -> str:
    """Render the type of a value in words as HTML; a reference becomes a link."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f"<a href='#schema-{name}'>{name}</a>"
    if variants := _variants(schema):
        return " or ".join(_type_html(one) for one in variants)
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    kind: str = schema.get("type", "anything")
    if kind == "array":
        kind = f"list of {_type_html(schema.get('items', {}))}"
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return kind + (f" ({', '.join(bounds)})" if bounds else "")


def curl_command(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Return a curl command that calls a route with an example body, or with a file for a binary body."""
    words = ["curl", "http://127.0.0.1:8000" + path]
    body = _json_schema(operation.get("requestBody", {}))
    if body:
        data = json.dumps(example_value(openapi, body), ensure_ascii=False)
        words += ["-H", "Content-Type: application/json", "-d", data]
    elif operation.get("requestBody"):  # a file
        words += ["-H", f"Content-Type: {next(iter(operation['requestBody']['content']))}", "--data-binary", "@FILE"]
    elif method != "get":
        words += ["-X", method.upper()]
    return shlex.join(words)


def example_value(openapi: Schema, schema: Schema, depth: int = MAX_EXAMPLE_DEPTH) -> Any:
    """Return a value of a schema: simple values, and of an object its required fields."""
    if "$ref" in schema and depth:
        return example_value(openapi, openapi["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]], depth - 1)
    if variants := _variants(schema):
        return example_value(openapi, variants[0], depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "array":
        return [example_value(openapi, schema.get("items", {}), depth - 1)] if depth else []
    if "properties" in schema:
        return {name: example_value(openapi, field, depth - 1) for name, field, needed in _fields(schema) if needed}
    return _SAMPLES.get(str(schema.get("type")), {})


def _variants(schema: Schema) -> list[Schema]:
    return schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []


def _json_schema(holder: Schema) -> Schema:
    """Return the JSON schema of the body of a request or a response (`holder`); {} if it has none."""
    schema: Schema = holder.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _anchor(method: str, path: str) -> str:
    return escape(method + path.replace("/", "-").replace("{", "").replace("}", ""))


def _operation_name(method: str, path: str) -> str:
    return escape(f"{method.upper()} {path}")


def _paragraph(text: str | None) -> str:
    return f"<p>{escape(text)}</p>" if text else ""
