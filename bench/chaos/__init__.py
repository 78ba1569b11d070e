"""Requests that must all be answered right while workers are killed, stopped and cut off: `pdserve drill chaos`.

`drill` runs one: it asks the `questions` and compares each `answer`. `mishaps` disturb the workers of a `fleet` through
`relay`s, which `relayed_membership` puts before each; `verdict` says what was not as it should be.
"""
