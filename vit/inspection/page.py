"""A page in one HTML file, which needs no other file and asks no host for anything."""

import base64
import hashlib
import html
import json
import re
from typing import Any

from vit.inspection.pictures import printable


def page(title: str, body: str, *, styles: str = "", script: str = "", data: Any = None) -> bytes:
    """An HTML file in UTF-8, whose own policy forbids every request and every script but this one.

    title is text. body is markup, in which whatever a user has named went through `html.escape`. script is a module; it
    finds data, plain values, as the JSON text of the element with the id "data". Raises ValueError if styles or script
    would end before their end.
    """
    if re.search(r"</(script|style)|<!--", styles + script, re.IGNORECASE):
        raise ValueError("styles or script hold </script, </style or <!--, where a browser would stop reading them")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    values = json.dumps(data).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(printable(title))}</title>
<style>{styles}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{values}</script>
<script type="module">{script}</script>
</body>
</html>
""".encode()
