"""Registries: built-ins are found, names are unique, and unknown names are explained."""

import functools
import sys
import textwrap

import pytest

from mtdinterp import plugins, registry
from mtdinterp.catalogue import built_in
from mtdinterp.estimators import Estimator
from mtdinterp.registry import Registry, UnknownName, module_names
from mtdinterp.tasks import task_from_dict

REGISTRIES = {
    "tasks": registry.TASKS,
    "estimators": registry.ESTIMATORS,
    "architectures": registry.ARCHITECTURES,
    "algorithms": registry.ALGORITHMS,
    "implementations": registry.IMPLEMENTATIONS,
    "probes": registry.PROBES,
}
READ_FROM_SOURCE = [
    ("mtdinterp.tasks", "register_task", registry.TASKS),
    ("mtdinterp.architectures", "register_architecture", registry.ARCHITECTURES),
    ("probes", "register_probe", registry.PROBES),
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules that register in a registry of their own."""
    folder = tmp_path / "menagerie"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from mtdinterp.registry import Registry\nANIMALS = Registry('animal', ('menagerie',))\n"
    )
    for name in ("lion", "otter"):
        source = f"from menagerie import ANIMALS\nANIMALS.add({name!r}, {name.upper()!r})\n"
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "menagerie"]:
        del sys.modules[name]


def animals():
    from menagerie import ANIMALS

    return ANIMALS


@pytest.mark.parametrize("kind", REGISTRIES)
def test_built_ins_are_found_under_their_own_names(kind):
    found = REGISTRIES[kind]
    assert len(found) == len(list(found)) > 0
    for name, item in found.items():
        own = getattr(item, "name", None)
        assert own is None or own == name
        assert name in found


def test_an_implementation_is_registered_under_its_pair():
    for name, implementation in registry.IMPLEMENTATIONS.items():
        assert name == f"{implementation.algorithm}/{implementation.architecture}"
        assert implementation.algorithm in registry.ALGORITHMS
        assert implementation.architecture in registry.ARCHITECTURES


def test_every_algorithm_is_an_estimator():
    for name, algorithm in registry.ALGORITHMS.items():
        assert registry.ESTIMATORS[name] is algorithm


@pytest.mark.parametrize(("package", "decorator", "found"), READ_FROM_SOURCE)
def test_the_catalogue_read_from_the_source_is_the_registry(package, decorator, found):
    labels = {name: item.label for name, item in found.items()}
    assert built_in(package, decorator) == labels


def test_the_modules_of_a_package_are_found_without_importing_them(package):
    assert module_names("menagerie") == ["menagerie.lion", "menagerie.otter"]
    assert "menagerie.lion" not in sys.modules
    with pytest.raises(ValueError, match="package: 'sys' is not a package"):
        module_names("sys")


def test_a_file_in_the_package_is_all_it_takes(package):
    (package / "zebra.py").write_text("from menagerie import ANIMALS\nANIMALS.add('zebra', 'Z')\n")
    found = animals()
    assert list(found) == ["lion", "otter", "zebra"]
    assert dict(found) == {"lion": "LION", "otter": "OTTER", "zebra": "Z"}


def test_a_module_that_fails_to_import_fails_at_every_look_up(package):
    """A half-filled registry would call registered names unknown."""
    (package / "otter.py").write_text("raise ImportError('no otter today')\n")
    found = animals()
    for _ in range(2):
        with pytest.raises(ImportError, match="no otter today"):
            found["lion"]


def test_an_unknown_name_lists_the_known_ones_and_a_near_match(package):
    found = animals()
    message = "animal: expected one of lion, otter; got 'oter'; did you mean 'otter'?"
    with pytest.raises(UnknownName) as caught:
        found["oter"]
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KeyError)
    assert found.get("oter") is None
    with pytest.raises(UnknownName, match=r"got 'xyz'$"):
        found["xyz"]


class Empty(Estimator):
    """Uniform weights."""

    name, label = "empty", "nothing at all"

    def weights(self, evidence, **constants):
        return evidence.uniform


class Impostor(Empty):
    """Another class with the same name."""


@pytest.fixture
def clean(monkeypatch):
    """Registrations of a test end with it."""
    for found in (registry.ESTIMATORS, registry.TASKS):
        monkeypatch.setattr(found, "_items", dict(found))


@pytest.mark.usefixtures("clean")
def test_a_class_or_an_instance_is_registered_and_returned():
    assert plugins.register_estimator(Empty) is Empty
    assert isinstance(registry.ESTIMATORS["empty"], Empty)
    instance = Empty()
    instance.name = "other-empty"
    assert plugins.register_estimator(instance) is instance
    assert registry.ESTIMATORS["other-empty"] is instance


@pytest.mark.usefixtures("clean")
def test_a_taken_name_is_refused_but_a_reloaded_definition_is_not():
    plugins.register_estimator(Empty)
    plugins.register_estimator(Empty)  # the same definition again, as after a reload
    with pytest.raises(ValueError, match="estimator: the name 'empty' is taken by"):
        plugins.register_estimator(Impostor)
    assert type(registry.ESTIMATORS["empty"]) is Empty


def test_two_probes_cannot_share_a_name(monkeypatch):
    monkeypatch.setattr(registry.PROBES, "_items", dict(registry.PROBES))

    @plugins.register_probe("empty", label="is there nothing?")
    def first(model, task):
        return None

    assert registry.PROBES["empty"].function is first
    assert registry.PROBES["empty"].needs == "model"
    plugins.register_probe("empty", label="is there still nothing?")(first)
    with pytest.raises(ValueError, match="probe: the name 'empty' is taken by"):

        @plugins.register_probe("empty", label="is there nothing at all?")
        def second(model, task):
            return None


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", [None, "", 3])
def test_what_has_no_name_is_refused(name):
    class Nameless(Empty):
        pass

    Nameless.name = name
    with pytest.raises(ValueError, match=r"name: expected .* to have a name"):
        plugins.register_estimator(Nameless)


@pytest.mark.usefixtures("clean")
def test_a_users_module_registers_a_task_and_an_estimator(tmp_path, monkeypatch):
    source = """
        from mtdinterp.plugins import register_estimator, register_task
        from mtdinterp.estimators import Estimator
        from mtdinterp.tasks import MTDTask

        @register_task
        class Renamed(MTDTask):
            name, label = "renamed", "the same process under another name"

        @register_estimator
        class FirstLag(Estimator):
            name, label = "first_lag", "all weight on lag 1"

            def weights(self, evidence, **constants):
                weights = 0 * evidence.uniform
                weights[:, 0] = 1
                return weights
    """
    (tmp_path / "users_module.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    import users_module

    monkeypatch.delitem(sys.modules, "users_module")
    assert users_module.FirstLag.label == "all weight on lag 1"
    task = registry.TASKS["renamed"].random(3, 2, seed=0)
    assert task.to_dict()["kind"] == "renamed"
    assert task_from_dict(task.to_dict()) == task
    evidence = task.evidence(task.sample(4, 10, seed=0).tokens)
    prediction = registry.ESTIMATORS["first_lag"].predict(evidence)
    assert (prediction == evidence.rows[:, 0]).all()


def test_a_registry_without_packages_holds_what_is_added():
    empty: Registry[int] = Registry("number", ())
    assert len(empty) == 0
    assert empty.add("one", 1) == 1
    assert dict(empty) == {"one": 1}


def test_a_probe_may_be_any_callable():
    probe = functools.partial(print, "nothing")
    plugins.register_probe("partial", label="anything")(probe)
    try:
        assert registry.PROBES["partial"].function is probe
    finally:
        registry.PROBES.remove("partial")


def test_an_unknown_name_is_repeated_only_in_part():
    with pytest.raises(UnknownName) as caught:
        registry.TASKS["x" * 10**6]
    assert len(str(caught.value)) < 500
