"""Render /openapi.json as one HTML page: every route with its fields and a curl command.

    render_page(openapi) = title, then each route (fields, command, responses), then each named schema (fields)

FastAPI's own page loads scripts from another host; this one needs none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from html import escape
from typing import Any

Schema = dict[str, Any]

METHODS = ("get", "post", "put", "patch", "delete")
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
    operations = list(_operations(openapi))
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
        *(_schema_section(name, schema) for name, schema in _schemas(openapi).items()),
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<meta name='color-scheme' content='light dark'>\n<title>{title}</title>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _operations(openapi: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield (method, path, operation) of each route."""
    for path, item in openapi.get("paths", {}).items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _schemas(openapi: Schema) -> dict[str, Schema]:
    """Return the component schemas of an OpenAPI description by name."""
    schemas: dict[str, Schema] = openapi.get("components", {}).get("schemas", {})
    return schemas


def _operation_section(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Render one route as an HTML section: its description, fields, curl command and responses."""
    body = _json_schema(operation.get("requestBody", {}))
    fields = [
        (parameter["name"], {"description": parameter.get("description", ""), **parameter.get("schema", {})}, required)
        for parameter in operation.get("parameters", [])
        for required in [parameter.get("required", False)]
    ]
    responses = [_response_item(code, response) for code, response in operation.get("responses", {}).items()]
    parts = [
        f"<section id='{_anchor(method, path)}'>\n<h2>{_operation_name(method, path)}</h2>",
        _paragraph(operation.get("description") or operation.get("summary")),
        _table(fields),
        f"<p>Body: {_type_html(body)}</p>" if body else "",
        _table(_fields(body)) if body else "",
        f"<pre><code>{escape(curl_command(openapi, method, path, operation))}</code></pre>",
        "\n".join(["<p>Responses:</p>", "<ul>", *responses, "</ul>"]) if responses else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _response_item(code: str, response: Schema) -> str:
    """Render one response as an HTML list item: code, description and the type of its body."""
    body = _json_schema(response)
    return f"<li>{escape(code)}: {escape(response.get('description', ''))} {_type_html(body) if body else ''}</li>"


def _schema_section(name: str, schema: Schema) -> str:
    """Render one schema as an HTML section: its description and a table of its fields, or its type."""
    heading = f"<section id='schema-{escape(name)}'>\n<h3>{escape(name)}</h3>"
    fields = _table(_fields(schema)) or f"<p>{_type_html(schema)}</p>"
    return "\n".join([heading, _paragraph(schema.get("description")), fields, "</section>"])


def _fields(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Return (name, schema, whether required) of each property of an object schema."""
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
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type_html(one) for one in schema[several])
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    type = schema.get("type", "anything")
    kind = " or ".join(type) if isinstance(type, list) else str(type)
    if kind == "array":
        kind = f"list of {_type_html(schema.get('items', {}))}"
    else:
        kind = escape(kind)
    bounds = [escape(text.format(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    return kind + (f" ({', '.join(bounds)})" if bounds else "")


def curl_command(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Return a curl command that calls a route with an example body, or with a file for a binary body."""
    server = (openapi.get("servers") or [{"url": "http://127.0.0.1:8000"}])[0]["url"].rstrip("/")
    words = ["curl", server + path]
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
    """Return a value of a schema: its own example if it has one, else its required fields with simple values."""
    if "example" in schema:
        return schema["example"]
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema and depth:
        return example_value(openapi, _schemas(openapi).get(schema["$ref"].rsplit("/", 1)[-1], {}), depth - 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return example_value(openapi, schema[several][0], depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "array":
        return [example_value(openapi, schema.get("items", {}), depth - 1)] if depth else []
    if "properties" in schema:
        return {name: example_value(openapi, field, depth - 1) for name, field, needed in _fields(schema) if needed}
    return _SAMPLES.get(str(schema.get("type")), {})


def _json_schema(holder: Schema) -> Schema:
    """Return the JSON schema of the body of a request or a response (`holder`); {} if it has none."""
    schema: Schema = holder.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _anchor(method: str, path: str) -> str:
    """Return the HTML id of a route."""
    return escape(method + path.replace("/", "-").replace("{", "").replace("}", ""))


def _operation_name(method: str, path: str) -> str:
    """Return the HTML heading of a route: METHOD /path."""
    return escape(f"{method.upper()} {path}")


def _paragraph(text: str | None) -> str:
    """Render a text as an HTML paragraph; '' if there is none."""
    return f"<p>{escape(text)}</p>" if text else ""
