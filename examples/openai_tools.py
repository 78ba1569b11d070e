"""An answer in JSON of a schema, and a call of a function, with the official `openai` client (pip install openai).

python examples/openai_tools.py Prague
"""

from __future__ import annotations

import argparse
import json

from openai import OpenAI

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "country": {"type": "string", "maxLength": 40}},
    "required": ["name", "country"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("city", nargs="?", default="Paris")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    options = parser.parse_args()

    client = OpenAI(base_url=options.url, api_key="none")  # the client wants a key; this server asks for none
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"In which country is {options.city}?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}},
        temperature=0,
    )
    print(json.loads(answer.choices[0].message.content))

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"What is the weather in {options.city}, in degrees Celsius?"}],
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    for call in answer.choices[0].message.tool_calls:
        print(call.function.name, json.loads(call.function.arguments))


if __name__ == "__main__":
    main()
