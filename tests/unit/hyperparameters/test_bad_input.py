"""What cannot be explored is refused with the reason, and nothing is left behind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import hdet
from tests.fakes import Alike, Attention
from tests.states import inside
from tests.unit.hyperparameters.scenes import Scene


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


class Wanted:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def group_key(scene: Scene, key: str, **options: Any) -> hdet.Hyperparameter:
    group = scene.optimizer.param_groups[0]
    return scene.hyperparameter(
        f"my {key}", read=lambda: group[key], write=lambda v: group.update({key: v}), **options
    )


def under_adam(scene: Scene, item: Any) -> Any:
    scene.optimizer = Scene(Adam).optimizer
    return item


def dropouts(scene: Scene, *layers: Sequence[str]) -> list[Any]:
    return [hdet.Dropout(scene.model, layers=names, name=f"drop{i}") for i, names in enumerate(layers)]


#: What to explore, and the error: the call, the rule, the value received and the mend.
BAD: dict[str, tuple[Callable[[Scene], Any], str]] = {
    "unknown layer": (
        lambda s: hdet.Dropout(s.model, layers=["a", "nowhere"]),
        "ValueError: Dropout.*layers must be a list of some of 'a', 'b', 'c', 'other'.*'nowhere'",
    ),
    "unknown attribute of a temperature": (
        lambda s: hdet.Temperature(s.model, attribute="tau"),
        "ValueError: Temperature.*model must have attribute 'tau'.*ModuleDict without.*attribute=",
    ),
    "model without dropout": (
        lambda s: hdet.Dropout(s.linear),
        "ValueError: Dropout.*model must have dropout layers.*Linear without.*attribute=",
    ),
    "no model": (
        lambda s: hdet.Dropout(s.optimizer),
        "TypeError: Dropout.*model must be a torch nn.Module.*SGD",
    ),
    "criterion without label smoothing": (
        lambda s: hdet.LabelSmoothing(nn.MSELoss()),
        "ValueError: LabelSmoothing.*must have an attribute label_smoothing.*MSELoss.*CrossEntropyLoss",
    ),
    "groups that differ": (
        lambda s: hdet.WeightDecay(),
        "ValueError: weight_decay.*one hyperparameter has one value.*0.1, 0.2.*explore them one by one",
    ),
    "unknown group": (
        lambda s: hdet.WeightDecay(groups=[0, 2]),
        r"ValueError: WeightDecay.*groups must be a list of some of \[0, 1\].*got \[0, 2\]",
    ),
    "an optimizer without it": (
        lambda s: hdet.Betas(1),
        "ValueError: Betas.*groups must have 'betas'.*SGD with .*momentum.*leave Betas out",
    ),
    "bounds that exclude the start": (
        lambda s: hdet.WeightDecay(groups=[0], bounds=(0.2, 1.0)),
        r"ValueError: weight_decay.*bounds must include.*bounds=\(0.2, 1\) .*value of 0.1.*widen the bounds",
    ),
    "bounds reversed": (
        lambda s: hdet.Momentum(bounds=(0.9, 0.1)),
        r"ValueError: Momentum.*bounds must be two numbers.*lower one first.*\(0.9, 0.1\)",
    ),
    "bounds that are nan": (
        lambda s: hdet.Dropout(s.model, bounds=(math.nan, 0.5)),
        r"ValueError: Dropout.*bounds must be two numbers in \[0, 1\).*\(nan, 0.5\)",
    ),
    "a dropout of everything": (
        lambda s: hdet.Dropout(s.model, bounds=(0.0, 1.0)),
        r"ValueError: Dropout.*bounds must be two numbers in \[0, 1\).*\(0.0, 1.0\)",
    ),
    "a tensor of three": (
        lambda s: hdet.Temperature(nn.Sequential(Attention(torch.ones(3)))),
        r"TypeError: temperature.*value must be a scalar.*Tensor of shape \(3,\).*one hyperparameter each",
    ),
    "a string": (
        lambda s: hdet.LabelSmoothing(Wanted(label_smoothing="much")),
        "TypeError: label_smoothing.*value must be a scalar.*str 'much'.*explore one number",
    ),
    "no number": (
        lambda s: s.hyperparameter(read=lambda: math.nan),
        "ValueError: x.*value must be a finite number.*nan",
    ),
    "one group's decay twice": (
        lambda s: [hdet.WeightDecay(groups=[0]), group_key(s, "weight_decay")],
        "ValueError: Ensemble.*must not write to one place.*weight_decay and my weight_decay.*leave one out",
    ),
    "a learning rate twice": (
        lambda s: [hdet.LearningRate(), group_key(s, "lr")],
        "ValueError: Ensemble.*must not write to one place.*my lr and lr/0.*leave one out",
    ),
    "two of one's own in one place": (
        lambda s: [s.hyperparameter("x"), s.hyperparameter("y")],
        "ValueError: Ensemble.*must not write to one place.*x and y.*leave one out",
    ),
    "a layer twice, once among others": (
        lambda s: dropouts(s, ["a"], ["b", "a"]),
        "ValueError: Ensemble.*must not write to one place.*drop. and drop..*leave one out",
    ),
    "one name for two": (
        lambda s: [hdet.Dropout(s.model, layers=["a"]), hdet.Dropout(s.model, layers=["b"])],
        "ValueError: Ensemble.*name each hyperparameter once.*dropout, dropout.*name= each",
    ),
    "a negative spread": (
        lambda s: hdet.Momentum(spread=-0.5),
        "ValueError: momentum.*spread must be a finite number of at least 0.*-0.5",
    ),
    "too many spreads": (
        lambda s: hdet.WeightDecay(each=True, spread=[0.1, 0.2, 0.3]),
        "ValueError: weight_decay.*one for each of the 2 explored groups.*got 3",
    ),
    "too few spreads of the learning rate": (
        lambda s: hdet.LearningRate([0.1]),
        "ValueError: LearningRate.*one for each of the 2.*got 1",
    ),
    "a write that is not read back": (
        lambda s: s.hyperparameter(write=lambda value: None),
        "ValueError: Ensemble: x.*written must be read back.*wrote 0.15 and read 0.1.*check read and write",
    ),
    "no function": (
        lambda s: s.hyperparameter(read=0.5),
        "TypeError: Hyperparameter 'x'.*read must be a callable.*float",
    ),
    "an unknown scale": (
        lambda s: s.hyperparameter(scale="root"),
        "ValueError: Hyperparameter 'x'.*scale must be 'linear' or 'log'.*'root'",
    ),
    "an unknown way to act": (
        lambda s: s.hyperparameter(acts="backward"),
        "ValueError: Hyperparameter 'x'.*acts must be 'forward' or 'step'.*'backward'",
    ),
    "a logarithm from 0 to infinity": (
        lambda s: s.hyperparameter(scale="log", bounds=(0.0, math.inf)),
        r"ValueError: Hyperparameter 'x'.*needs an upper bound.*\(0.0, inf\).*give one",
    ),
    "a linear scale of any width": (
        lambda s: s.hyperparameter(bounds=(0.0, math.inf)),
        "ValueError: Hyperparameter 'x'.*no default spread.*spread=None.*give bounds or spread",
    ),
    "no hyperparameter": (
        lambda s: [0.1],
        "TypeError: Ensemble.*explore must be a list of hyperparameters.*float.*wrap any other scalar",
    ),
    "a third beta": (
        lambda s: under_adam(s, hdet.Betas(3)),
        "ValueError: Betas.*which must be in 1…2.*3",
    ),
    "a trained temperature": (
        lambda s: hdet.Temperature(Trained()),
        "TypeError: Temperature.*scale.*must not be trained.*got an nn.Parameter.*register it as a buffer",
    ),
    "a class": (lambda s: [hdet.Momentum], "TypeError: Ensemble.*explore must be a list of hyperparameters"),
    "a momentum of Adam out of bounds": (
        lambda s: under_adam(s, hdet.Momentum(bounds=(0.0, 2.0))),
        r"ValueError: Momentum.*bounds must be two numbers in \[0, 1\).*\(0.0, 2.0\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_the_reason_and_nothing_is_left_behind(case: str) -> None:
    """Whatever had been bound already is undone: a clipping hook, values written to see if they are read."""
    build, said = BAD[case]
    scene = Scene()
    explored = build(scene)
    explored = explored if isinstance(explored, list) else [explored]
    before = scene.values()
    model: Any = scene.model
    bound = [hdet.Temperature(model, layers=[name], name=name) for name in ("number", "buffer")]
    clips = any(isinstance(item, hdet.GradientClip) for item in explored)
    explored = [*bound, *explored] if clips else [hdet.GradientClip(), *bound, *explored]
    with pytest.raises((AttributeError, TypeError, ValueError)) as caught:
        scene.explore(explored)
    assert re.match(said, f"{caught.typename}: {caught.value}"), caught.value
    assert scene.values() == before
    assert scene.hooks() == (0, 0)


def test_explore_is_a_list() -> None:
    with pytest.raises(TypeError, match=r"Ensemble: explore must be a list of hyperparameters.*Momentum"):
        Scene().explore(hdet.Momentum())  # type: ignore[arg-type]


def test_explore_is_not_used_up_by_comparing_it() -> None:
    scene = Scene()
    ensemble = scene.explore(item for item in [hdet.Momentum()])  # type: ignore[arg-type]
    assert len(inside(ensemble.state_dict())["explored"]) == 1


def test_a_run_that_cannot_be_averaged_leaves_nothing_behind() -> None:
    class Refusing(Alike):
        def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Any:
            raise TypeError("cannot be averaged")

    scene = Scene()
    before = scene.values()
    with pytest.raises(TypeError, match="cannot be averaged"):
        scene.explore(process_group=Refusing())
    assert scene.values() == before
    assert scene.hooks() == (0, 0)


@pytest.mark.parametrize("how", ["raises", "leaves what cannot be read"])
def test_a_write_that_fails_is_undone(how: str) -> None:
    scene = Scene()
    before = scene.values()

    def write(value: float) -> None:
        scene.own["x"] = None if how != "raises" and value != 0.1 else value
        if how == "raises" and value != 0.1:
            raise OSError("no")

    with pytest.raises((OSError, TypeError)):
        scene.explore([hdet.GradientClip(), scene.hyperparameter(write=write)])
    assert scene.values() == before
    assert scene.hooks() == (0, 0)


def test_a_state_of_other_hyperparameters_is_refused() -> None:
    """As many, but of another kind: with the reason, and before anything is written."""
    scene = Scene()
    state = scene.explore([hdet.LearningRate()]).state_dict()
    ensemble = scene.explore([hdet.GradientClip(), scene.hyperparameter()])
    own = scene.values()
    with pytest.raises(ValueError, match=r"Ensemble.load_state_dict: .*(lr/0|gradient_clip)"):
        ensemble.load_state_dict(state)
    assert scene.values() == own
    ensemble.detach()
