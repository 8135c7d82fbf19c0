"""What the API server holds by CEL (`x-kubernetes-validations`), and what it can't hold.

Each rule is the model's own, with the model's sentence: `tests/kube/crds/test_agree.py` runs one table through both.
Everything is bounded so that the server's estimate of a rule's cost passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import BaseModel

from stoker.spec.data import (
    ARCHIVE,
    FOLDER,
    FOLDER_SAYS,
    HTTP_FOLDER,
    MOUNT_PATH_SAYS,
    OF_URL_SAYS,
    OWN_PATHS,
    OWN_PATHS_SAYS,
    SOURCE_SAYS,
    SUB_PATH_SAYS,
    UNPACK_SAYS,
    DataVolume,
)
from stoker.spec.job import MUTABLE, TrainingJobSpec
from stoker.spec.job_parts import (
    ABOVE_0_SAYS,
    ELASTIC_SAYS,
    EVALUATED_SAYS,
    EXIT_ZERO_SAYS,
    FROM_SAYS,
    INIT_FROM_RECIPE_SAYS,
    INIT_FROM_SAYS,
    INIT_PATH_SAYS,
    INIT_WEIGHTS_SAYS,
    LEFT_OUT_SAYS,
    MODE_SAYS,
    ONE_WORKER_SAYS,
    PARTS_SAYS,
    PYTHON_PATH_NEEDS_SAYS,
    PYTHON_PATH_SAYS,
    REQUIREMENTS_NEED_SAYS,
    SECRET_TWICE_SAYS,
    SHARE_SAYS,
    WITHIN_CODE_SAYS,
    InitFrom,
    RetryRule,
    Target,
    Trainer,
)
from stoker.spec.markers import Form
from stoker.spec.names import (
    DEFAULT_QUEUE,
    ENV_NAME,
    GPU_RESOURCE,
    GPU_TYPE,
    RESERVED_ENV,
    RESERVED_ENV_PREFIXES,
    RESERVED_TYPES,
    SETTABLE_ENV,
    TYPE_RESERVED,
)
from stoker.spec.outcome import POLICIES, Category
from stoker.spec.quantity import AT_LEAST_A_MINUTE, DURATION, LONGEST_S, NOT_ZERO, QUANTITY, TOO_LARGE, TOO_LONG
from stoker.spec.queue import NOT_DEFAULT_SAYS, QueueSpec
from stoker.spec.recipes import RECIPES
from stoker.spec.runtime import CACHE_SAYS, CacheVolume, CheckpointStore, Toleration

from .cel import Rule, TextRule, is_optional, listed, quoted, unchanged


def of_model(model: type[BaseModel]) -> Iterable[Rule]:
    yield from _OF_MODEL.get(model, ())
    if model is TrainingJobSpec:
        yield from _immutable()


def of_field(model: type[BaseModel], name: str) -> Iterable[Rule]:
    yield from _OF_FIELD.get((model, name), ())
    if model is TrainingJobSpec and name not in MUTABLE:
        info = TrainingJobSpec.model_fields[name]
        yield Rule(unchanged(info.annotation, info.metadata), _frozen(info.alias or name))


def is_mutable(model: type[BaseModel], name: str) -> bool:
    return model is TrainingJobSpec and name in MUTABLE


def of_text(form: Form) -> list[TextRule]:
    """What holds for a text of this form: first the form itself: the pattern checks it too, but with no message."""
    text = "string({})" if form is QUANTITY else "{}"
    return [TextRule(f"{text}.matches({quoted(form.anchored)})", form.says), *_OF_TEXT.get(form, ())]


def _immutable() -> Iterable[Rule]:
    """Fields without a default neither come nor go. That values stay is a rule at each field (`of_field`).

    Cost: of each field that a rule names the API server makes a table of all fields beside it, at each write of a
    status too. So a rule stands as near its field as it can, names first what decides it most often, and names what it
    needs much of once, by `[self.gpu].all(gpu, ...)`: at each write 0.5 MB are taken, 0.8 MB if values that never
    change were looked at each time (`schema.Use.once`), 1.8 MB with all rules here.
    """
    for name, info in TrainingJobSpec.model_fields.items():
        if name not in MUTABLE and is_optional(info.annotation):
            field = info.alias or name
            yield Rule(f"has(self.{field}) == has(oldSelf.{field})", _frozen(field), field=field)


def _frozen(field: str) -> str:
    return f"spec.{field} can't be changed once the job exists; submit a new job"


def _reserved() -> TextRule:
    prefixes = " || ".join(f"{{}}.startsWith({quoted(prefix)})" for prefix in RESERVED_ENV_PREFIXES)
    return TextRule(
        f"!({{}} in {listed(RESERVED_ENV)}) && (!({prefixes}) || {{}} in {listed(SETTABLE_ENV)})",
        "is set by Stoker; choose another name",
    )


_BOUNDED = TextRule(
    "{}.findAll('[0-9]+(?:[.][0-9]+)?(?:ms|s|m|h|d)').map(part, double(part.find('[0-9.]+'))"
    " * {'ms': 0.001, 's': 1.0, 'm': 60.0, 'h': 3600.0, 'd': 86400.0}[part.find('[a-z]+')])"
    f".sum() <= {LONGEST_S}.0",
    TOO_LONG,
)

_OF_TEXT: dict[Form, list[TextRule]] = {
    QUANTITY: [
        TextRule(
            "!isQuantity(string({})) || quantity(string({})).isLessThan(quantity('9223372036854775807'))", TOO_LARGE
        )
    ],
    DURATION: [TextRule("{}.matches('[1-9]')", NOT_ZERO), _BOUNDED],
    AT_LEAST_A_MINUTE: [_BOUNDED],
    ENV_NAME: [_reserved()],
    GPU_TYPE: [TextRule(f"!({{}} in {listed(RESERVED_TYPES)})", TYPE_RESERVED)],
}

_WITH_RECIPE = "works with a recipe; with a command only the program itself can do it"
_THERE_IS = f"there is: {', '.join(sorted(RECIPES))}"
_PATH = "(has({0}.mountPath) ? {0}.mountPath : '/data/' + {0}.name)"
_OWN = " || ".join(
    f"(self + '/').startsWith({quoted(own + '/')}) || {quoted(own)}.startsWith(self + '/')" for own in OWN_PATHS
)


def _whole(pattern: re.Pattern[str]) -> str:
    return quoted(f"^(?:{pattern.pattern})$")


_OF_MODEL: dict[type[BaseModel], list[Rule]] = {
    TrainingJobSpec: [
        Rule(
            "!oldSelf.cancel || self.cancel || self.retryGeneration != oldSelf.retryGeneration",
            "spec.cancel can't be taken back; raise retryGeneration to run the job again",
            field="cancel",
        ),
        Rule(
            "self.gpusPerWorker > 0 || [self.gpu].all(gpu, size(gpu.models) == 0 && !has(gpu.minMemory)"
            " && !has(gpu.minComputeCapability) && !has(gpu.maxPower)"
            f" && gpu.resource == {quoted(GPU_RESOURCE)})",
            "gpu says which GPUs, but gpusPerWorker is 0; ask for at least one or leave gpu out",
            field="gpu",
        ),
        Rule(
            f"self.gpu.resource == {quoted(GPU_RESOURCE)} || (self.gpusPerWorker <= 1"
            " && (has(self.elastic) ? self.elastic.max : self.workers) <= 1)",
            PARTS_SAYS,
            field="gpu.resource",
        ),
        Rule(
            "!has(self.elastic) || (self.elastic.min <= self.workers && self.workers <= self.elastic.max)",
            ELASTIC_SAYS,
            field="workers",
        ),
        Rule("self.precision == 'auto' || !has(self.trainer.command)", f"precision {_WITH_RECIPE}", field="precision"),
        Rule(
            "!has(self.stop.maxSteps) || !has(self.trainer.command)",
            f"stop.maxSteps {_WITH_RECIPE}",
            field="stop.maxSteps",
        ),
        Rule(
            "!has(self.stop.target) || !has(self.trainer.command)"
            " || (has(self.elastic) ? self.elastic.max : self.workers) <= 1",
            ONE_WORKER_SAYS,
            field="stop.target",
        ),
        Rule(
            "!has(self.stop.target) || has(self.trainer.command) || self.stop.target.metric in ['accuracy', 'loss']",
            EVALUATED_SAYS,
            field="stop.target.metric",
        ),
        Rule(
            "!has(self.stop.patience) || !has(self.trainer.command)",
            f"stop.patience {_WITH_RECIPE}",
            field="stop.patience",
        ),
        Rule(
            "self.stop.exitZeroAfterSignal != 'Stopped' || has(self.trainer.command)",
            EXIT_ZERO_SAYS,
            field="stop.exitZeroAfterSignal",
        ),
        Rule("!has(self.checkpoint.from) || !has(self.trainer.initFrom)", FROM_SAYS, field="checkpoint.from"),
        Rule("self.secretEnv.all(name, !(name in self.env))", SECRET_TWICE_SAYS, field="secretEnv"),
    ],
    Trainer: [
        Rule("has(self.recipe) != has(self.command)", "give either recipe (with config) or command (with workingDir)"),
        Rule(
            "!has(self.recipe) || (!has(self.workingDir) && !has(self.image) && !has(self.code))",
            "workingDir, image and code belong to command; a recipe has its own",
        ),
        Rule(
            "!has(self.code) || !has(self.workingDir)"
            " || (!self.workingDir.startsWith('/') && !('..' in self.workingDir.split('/')))",
            WITHIN_CODE_SAYS,
            field="workingDir",
        ),
        Rule("has(self.code) || size(self.leftOut) == 0", LEFT_OUT_SAYS, field="leftOut"),
        Rule(
            "!has(self.pythonPath)"
            " || self.pythonPath.all(path, !path.startsWith('/') && !path.contains(':') && !('..' in path.split('/')))",
            PYTHON_PATH_SAYS,
            field="pythonPath",
        ),
        Rule(
            "!has(self.pythonPath) || size(self.pythonPath) == 0 || has(self.code)",
            PYTHON_PATH_NEEDS_SAYS,
            field="pythonPath",
        ),
        Rule("!has(self.requirements) || has(self.code)", REQUIREMENTS_NEED_SAYS, field="requirements"),
        Rule(
            "has(self.recipe) || size(dyn(self.config)) == 0",
            "config belongs to recipe; give a command its settings as arguments or env",
            field="config",
        ),
        Rule("has(self.recipe) || !has(self.initFrom)", INIT_FROM_RECIPE_SAYS, field="initFrom"),
        Rule(
            "!has(self.command) || (size(self.command) > 0 && self.command[0] != '')",
            "command must name a program",
            field="command",
        ),
    ],
    RetryRule: [
        Rule(
            f"!({quoted(category)} in self.categories)",
            f"{category} can't be given retries: {POLICIES[category].says}",
            field="categories",
        )
        for category in Category
        if not POLICIES[category].raisable
    ],
    InitFrom: [
        Rule("has(self.job) != has(self.path)", INIT_FROM_SAYS),
        Rule("!has(self.path) || self.weights == 'final'", INIT_WEIGHTS_SAYS, field="weights"),
        Rule("!has(self.path) || self.path.startsWith('/')", INIT_PATH_SAYS, field="path"),
    ],
    Target: [
        Rule("self.metric != 'accuracy' || self.value <= 1.0", SHARE_SAYS, field="value"),
        Rule("!(self.metric in ['accuracy', 'loss']) || self.value > 0.0", ABOVE_0_SAYS, field="value"),
        Rule("self.metric in ['accuracy', 'loss'] || has(self.mode)", MODE_SAYS, field="mode"),
    ],
    DataVolume: [
        Rule("[has(self.claim), has(self.path), has(self.url)].filter(given, given).size() == 1", SOURCE_SAYS),
        Rule(
            "has(self.url) ? self.subPath == '' && self.readOnly : !has(self.digest) && !self.unpack",
            OF_URL_SAYS,
        ),
        Rule(
            f"!has(self.url) || !(self.url.matches({_whole(HTTP_FOLDER)})"
            f" || (self.url.matches({_whole(FOLDER)}) && (has(self.digest) || self.unpack)))",
            FOLDER_SAYS,
            field="url",
        ),
        Rule(f"!has(self.url) || !self.unpack || self.url.matches({_whole(ARCHIVE)})", UNPACK_SAYS, field="unpack"),
    ],
    CacheVolume: [Rule("has(self.claim) != has(self.hostPath)", CACHE_SAYS)],
    CheckpointStore: [Rule("has(self.claim) != has(self.template)", "give either claim or template")],
    Toleration: [
        Rule(
            "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
            "a toleration without a key must have operator Exists",
        ),
        Rule(
            "!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'",
            "a toleration with operator Exists has no value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds belongs to effect NoExecute",
        ),
    ],
}

_OF_FIELD: dict[tuple[type[BaseModel], str], list[Rule]] = {
    (Trainer, "recipe"): [
        Rule(
            f"self in {listed(RECIPES)}",
            f"there is no such recipe; {_THERE_IS}",
            says_cel=f"{quoted('there is no recipe ')} + self + {quoted('; ' + _THERE_IS)}",
        )
    ],
    (DataVolume, "mount_path"): [
        Rule(
            "self.startsWith('/') && !self.contains(':')"
            " && self.substring(1).split('/').all(part, !(part in ['', '.', '..']))",
            MOUNT_PATH_SAYS,
        ),
        Rule(f"!({_OWN})", OWN_PATHS_SAYS),
    ],
    (TrainingJobSpec, "retry_generation"): [Rule("self >= oldSelf", "spec.retryGeneration can only be raised")],
    (QueueSpec, "parent"): [Rule(f"self != {quoted(DEFAULT_QUEUE)}", NOT_DEFAULT_SAYS)],
    (DataVolume, "sub_path"): [Rule("!self.startsWith('/') && !('..' in self.split('/'))", SUB_PATH_SAYS)],
    (TrainingJobSpec, "data"): [
        Rule(
            f"self.all(a, self.exists_one(b, {_PATH.format('a')} == {_PATH.format('b')}))",
            "two entries of data have the same mountPath",
        )
    ],
}
