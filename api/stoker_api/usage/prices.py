"""What a GPU-hour costs: prices by model, from the api's options. Applied when asked, never stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

ANY = "*"
CURRENCY = "EUR"
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Prices:
    """`by_model`: a part of the model's name in any case (`h200`, `*`: any) → price of an hour. Of several that match,
    the longest counts; blanks and dashes are the same, since both are written (`NVIDIA-H200`)."""

    by_model: tuple[tuple[str, float], ...] = ()
    currency: str = CURRENCY

    @classmethod
    def parse(cls, given: Iterable[str], currency: str = CURRENCY) -> Self:
        """Of options `MODEL=PRICE`. Raises: ValueError with what to write instead."""
        if not _CURRENCY.fullmatch(currency):
            raise ValueError(f"{currency!r} is no currency; write its three letters (ISO 4217), for example EUR")
        found: dict[str, float] = {}
        for text in given:
            model, equals, price_text = text.rpartition("=")
            try:
                price = float(price_text)
            except ValueError:
                price = -1.0
            if not equals or not model.strip() or not 0 <= price < 1e9:
                raise ValueError(f"{text!r} is no price; write MODEL=PRICE, for example h200=2.80 or *=1.50")
            name = _plain(model)
            if name in found:
                raise ValueError(f"{model!r} has two prices; give it one")
            found[name] = price
        return cls(tuple(sorted(found.items(), key=lambda item: (item[0] == ANY, -len(item[0]), item[0]))), currency)

    def of(self, model: str) -> float | None:
        """An hour's price; None: none is set for this model."""
        name = _plain(model)
        return next((price for part, price in self.by_model if part == ANY or part in name), None)

    def __bool__(self) -> bool:
        return bool(self.by_model)


def _plain(model: str) -> str:
    return " ".join(model.lower().replace("-", " ").split())
