"""One API key: what its holder may do, and the digest by which it is recognised.

A key is 256 random bits, so no dictionary holds it and one SHA-256 keeps it as well as a slow hash of a password would,
without letting clients buy a slow hash's work by sending wrong keys. The key itself is nowhere kept.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from proxy.access.caller import TENANT, Scope

FORM = re.compile(r"pdserve-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")  # the public id, then the secret
NO_KEY = "0" * 64  # no input's digest that anybody knows


class ApiKey(BaseModel):
    """As the key file has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")  # for people; one of each in a file
    id: str = Field(pattern=r"^[0-9a-f]{16}$")  # the part of the key that is no secret, by which it is looked up
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # of the whole key
    tenant: str = Field(pattern=f"^{TENANT.pattern}$")
    may_set_tenant: bool = False  # speaks for any tenant (x-tenant): a gateway's key
    scopes: frozenset[Scope] = Field(frozenset({Scope.INFERENCE}), min_length=1)
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    is_revoked: bool = False

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. Whoever gets `text` is its only holder."""

    text: str
    id: str
    sha256: str

    @classmethod
    def draw(cls) -> NewKey:
        key_id = secrets.token_hex(8)
        text = f"pdserve-{key_id}-{secrets.token_urlsafe(32)}"
        return cls(text, key_id, digest(text))

    @classmethod
    def of(cls, text: str) -> NewKey:
        """Raises ValueError when it is no key."""
        key_id = id_of(text)
        if key_id is None:
            raise ValueError("no API key: it has another form")
        return cls(text, key_id, digest(text))


def operator_key(text: str) -> ApiKey:
    """Of the cluster's own commands: may do all, for every tenant. Raises ValueError when it is no key."""
    key = NewKey.of(text)
    return ApiKey(
        name="operator",
        id=key.id,
        sha256=key.sha256,
        tenant="operator",
        may_set_tenant=True,
        scopes=frozenset(Scope),
        created_at=datetime.now(UTC),
    )


def id_of(text: str) -> str | None:
    """None when it is no key."""
    form = FORM.fullmatch(text)
    return None if form is None else form[1]


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def is_key(text: str, key: ApiKey | None) -> bool:
    """In the same time whatever the text is, and whether there is a key of that id or not."""
    return compare_digest(digest(text), NO_KEY if key is None else key.sha256)
