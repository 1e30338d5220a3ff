"""Random checkpoints: package and oracle agree on every byte, and every value comes back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.optim import AdamWConfig, AdamWState, AdamWStateEntry, OptimizerSnapshot, ParameterGroups
from llmcy.state import DecoderModelState
from tests.checkpoint.states import sealed
from tests.oracle.checkpoint_file import build, parse

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
u64 = st.integers(0, 2**64 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@st.composite
def configs(draw):
    head_dim, n_heads = 2 * draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return ModelConfig(
        vocab_size=draw(st.integers(1, 6)),
        d_model=head_dim * n_heads,
        n_heads=n_heads,
        n_layers=draw(st.integers(0, 2)),
        d_ff=draw(st.integers(1, 5)),
        max_seq_len=draw(st.integers(1, 2**40)),
        rope_theta=draw(st.floats(1.0, 1e6)),
        rms_norm_eps=draw(st.floats(0.0, 1.0)),
    )


@st.composite
def arrays(draw, shape, elements=finite):
    count = int(np.prod(shape))
    few = draw(st.lists(elements, min_size=1, max_size=8))
    return np.resize(np.array(few), count).reshape(shape)


@st.composite
def checkpoints(draw):
    config = draw(configs())
    pieces = draw(
        st.lists(
            st.binary(min_size=1, max_size=5),
            min_size=config.vocab_size,
            max_size=config.vocab_size,
            unique=True,
        )
    )
    shapes = config.parameter_shapes()
    model = DecoderModelState.from_named_arrays(
        config, [(name, draw(arrays(shape))) for name, shape in shapes.items()]
    )
    adamw = AdamWConfig(
        draw(st.floats(1e-9, 10.0)),
        (draw(st.floats(0.0, 1.0, exclude_max=True)), draw(st.floats(0.0, 0.999))),
        draw(st.floats(1e-300, 1.0)),
        draw(st.sampled_from([0.0, 0.01])),
    )
    step = draw(st.one_of(st.just(0), st.integers(1, 2**64 - 1)))
    if step == 0:
        state = AdamWState.initial()
        members = draw(st.lists(names, max_size=4, unique=True))
    else:
        below_one = st.floats(0.0, 1.0, exclude_max=True)
        moments = st.floats(0.0, allow_infinity=False)
        entries = [
            AdamWStateEntry(name, shape, draw(arrays(shape)), draw(arrays(shape, moments)))
            for name, shape in shapes.items()
        ]
        state = AdamWState(step, draw(below_one), draw(below_one), draw(st.permutations(entries)))
        members = list(shapes)
    groups = None
    if members and draw(st.booleans()):
        cut = draw(st.integers(0, len(members)))
        members = draw(st.permutations(members))
        groups = ParameterGroups(members[:cut], members[cut:])
    selected = sealed(step, model, OptimizerSnapshot(adamw, groups, state))
    return Checkpoint.from_snapshot(TokenizerRecord.literal(pieces), selected, draw(u64))


@pytest.mark.feature("J15", "J16", "M49")
@given(checkpoints())
def test_round_trip(checkpoint):
    encoded = checkpoint.encode()
    assert build(parse(encoded.bytes)) == encoded.bytes
    loaded = Checkpoint.from_bytes(encoded.bytes)
    assert loaded.encode() == encoded
    assert loaded.tokenizer == checkpoint.tokenizer
    assert loaded.model_state.equal_bits(checkpoint.model_state)
    assert loaded.optimizer.state.equal_bits(checkpoint.optimizer.state)
    assert loaded.optimizer.config == checkpoint.optimizer.config
    assert loaded.optimizer.groups == checkpoint.optimizer.groups
    assert loaded.sampling_rng_state() == checkpoint.sampling_rng_state()
    assert loaded.selected_step == checkpoint.selected_step
