"""Signatures are checked while testing: here in every run, in tests/contracts only when all types are checked."""

import jaxtyping
import pytest

from glassformer.nn import masks


def test_a_wrong_type_is_seen_where_types_are_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="padding"):
        masks.padding("not a tensor")  # type: ignore[arg-type]
