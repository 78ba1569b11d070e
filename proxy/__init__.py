"""The proxy, in reading order.

`fronts` take a request in (gRPC, HTTP; `openai` speaks that dialect), `access` says who asks, `service` admits it by
the rules of `admission`, `text` and `tools` and `grammar` turn it into token ids and back, `request` is its course from
admission to its end, `routing` chooses its workers, `workers` keeps the links to them. `core` and `server` put all of
it together.
"""
