"""Settings are declared once; a subclass changes a default, a preset several values."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vgtools.io.settings import configured, count, declared, entries, file, preset, value


@dataclass(frozen=True, kw_only=True)
class Fast:
    """Settings, three of them with a value in the preset `paper`.

    Attributes:
        rate: Rate.
        steps: Steps, which are many, so that this text is wrapped: its second line is indented, and
            belongs to it.
        shape: Shape.
        plain: No setting.
    """

    rate: float = value(0.1, "--rate", "-r", min=0, presets={"paper": 0.5, "text": 2.0})
    steps: int = count(..., least=2, presets={"paper": 7})
    shape: str | None = file("x", presets={"paper": None})
    plain: int = 3


@dataclass(frozen=True, kw_only=True)
class Slow(Fast):
    """Another default, another declaration, another help.

    Attributes:
        steps: Its steps.
    """

    rate: float = 0.01
    shape: str | None = file(None, f"Its {'shape'}.")


def test_a_field_has_a_default_or_must_be_given() -> None:
    assert Fast(steps=2) == Fast(rate=0.1, steps=2, shape="x", plain=3)
    with pytest.raises(TypeError, match="steps"):
        Fast()


def test_a_subclass_with_another_default_keeps_the_declaration() -> None:
    assert Slow.rate == 0.01
    assert declared(Slow, "rate") == declared(Fast, "rate")
    assert declared(Slow, "rate")["names"] == ("--rate", "-r")
    assert declared(Slow, "shape")["help"] == "Its shape."
    assert declared(Fast, "plain") == {}
    steps = declared(Slow, "steps")
    assert (steps["metavar"], steps["min"]) == ("N", 2)


def test_the_help_has_the_value_of_the_paper() -> None:
    helps = [declared(Fast, name)["help"] for name in ("rate", "steps", "shape")]
    wrapped = "which are many, so that this text is wrapped: its second line is indented, and"
    steps = f"Steps, {wrapped} belongs to it (paper: 7)."
    assert helps == ["Rate (paper: 0.5).", steps, "Shape."]
    assert declared(Slow, "rate")["help"] == "Rate (paper: 0.5)."
    assert declared(Slow, "steps")["help"] == "Its steps (paper: 7)."


def test_what_the_data_decide_comes_first() -> None:
    @dataclass(frozen=True)
    class Shaped(Slow):
        """Settings with a width."""

        width: int

    assert list(entries(Shaped(4, steps=2)).items()) == [
        ("width", 4),
        ("rate", 0.01),
        ("steps", 2),
        ("shape", None),
        ("plain", 3),
    ]


def test_a_preset_has_the_values_that_it_names() -> None:
    assert preset(Fast, "paper") == {"rate": 0.5, "steps": 7, "shape": None}
    assert preset(Fast, "text") == {"rate": 2.0}
    assert preset(Slow, "paper") == {"rate": 0.5, "steps": 7}


def test_a_configuration_takes_its_part_of_the_settings() -> None:
    @dataclass(frozen=True)
    class Shaped(Slow):
        """Settings with a width."""

        width: int

    given = {"rate": 0.3, "steps": 4, "seed": 1}
    assert configured(Shaped, given, width=5) == Shaped(5, rate=0.3, steps=4)
