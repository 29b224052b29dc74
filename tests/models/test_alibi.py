"""ALiBi in whole models: what distance means in an encoder, that only distance matters, and kinds that are unknown."""

import pytest
import torch

from glassformer.config import Alibi
from glassformer.config.parts import PLACEMENTS
from tests.configs import CONFIGS, attention, built, model, stack, tokens
from tests.helpers import PATHS, largest_difference

ENCODER = model(encoder=stack(attention=attention(heads=6, score_bias=Alibi())))


@pytest.mark.parametrize("path", PATHS)
def test_an_encoder_reads_a_text_backwards_as_it_reads_it_forwards(path):
    """Distances are absolute, so the only sign of a direction would be a mistake; but the order itself does matter."""
    made, ids = built(ENCODER), tokens(2, 9)
    forwards, backwards = made(ids, path=path), made(ids.flip(-1), path=path)
    assert largest_difference(forwards, backwards.flip(-2)) < 1e-12
    swapped = ids[:, [1, 0, *range(2, 9)]]
    assert largest_difference(forwards[:, 2:], made(swapped, path=path)[:, 2:]) > 1e-3


@pytest.mark.parametrize("config", [ENCODER, CONFIGS["bloom"]], ids=["encoder", "decoder"])
def test_where_a_text_begins_does_not_matter(config):
    made, ids = built(config), tokens(2, 7)
    here, there = (made(ids, positions=torch.arange(7) + start) for start in (0, 100_000))
    assert largest_difference(here, there) < 1e-12
    assert largest_difference(here, made(ids, positions=2 * torch.arange(7))) > 1e-3


def test_no_limit_is_set_on_the_length():
    assert CONFIGS["bloom"].max_length is None
    assert built("bloom")(tokens(1, 200)).isfinite().all()


def test_every_placement_is_drawn_by_a_config():
    """So that promises about configs hold for each."""
    stacks = [part for config in CONFIGS.values() for part in (config.encoder, config.decoder) if part is not None]
    assert {part.placement for part in stacks} == set(PLACEMENTS)
