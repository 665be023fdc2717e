"""What was read is written again, however deep."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.deep_json import _dumps_deep, dumps

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=5),
              st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=3), inner)),
)  # fmt: skip


@given(json_values)
def test_without_recursion_it_is_the_same_to_the_byte(value):
    assert _dumps_deep(value) == orjson.dumps(value)


@pytest.mark.parametrize("depth", [253, 254, 255, 900, 1023])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('[{"a":', "}]"), ('{"b":[1,', "]}")])
def test_as_deep_as_it_can_be_read(depth, opening, closing):
    levels = depth // opening.count("[") if "{" not in opening else depth // 2
    text = (opening * levels + "1" + closing * levels).encode()
    assert dumps(orjson.loads(text)) == text
