"""The manifests for Kubernetes and SkyPilot in launch/: what their schemas require, and that their parts agree.

The published schemas are not part of this repository. The classes of the package kubeflow-trainer-api are made of those
of JobSet, Kubeflow Trainer and Kubernetes: where it is installed, they read the manifests. What the schemas require is
looked for everywhere.
"""

from __future__ import annotations

import importlib
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from distprof.cli.parser import VERBS
from tests.ranks import REPOSITORY

LAUNCH = REPOSITORY / "launch"
REQUIRED = {
    "jobset.x-k8s.io/v1alpha2 JobSet": (
        "metadata.name", "spec.replicatedJobs.*.name", "spec.replicatedJobs.*.template.spec.template.spec",
    ),
    "trainer.kubeflow.org/v1alpha1 TrainJob": (
        "metadata.name", "spec.runtimeRef.name", "spec.runtimePatches.*.manager",
        "spec.runtimePatches.*.trainingRuntimeSpec.template.spec.replicatedJobs.*.name",
    ),
}  # fmt: skip
PUBLISHED = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob"}
POD_REQUIRED = ("containers.*.name", "volumes.*.name", "containers.*.volumeMounts.*.mountPath")
KNOWN = {
    "JobSet": {"network", "failurePolicy", "replicatedJobs"}, "TrainJob": {"runtimeRef", "trainer", "runtimePatches"},
    "Job": {"completionMode", "completions", "parallelism", "backoffLimit", "template"},
    "Pod": {"restartPolicy", "terminationGracePeriodSeconds", "initContainers", "containers", "volumes"},
}  # fmt: skip
"""What is used of each, so that a name typed wrongly, which Kubernetes may drop without a word, is noticed."""


def read(name: str) -> Any:
    return yaml.safe_load((LAUNCH / name).read_text(encoding="utf-8"))


def find(value: Any, path: str) -> Iterator[Any]:
    """What stands at a path, in which ``*`` is every item of a list; KeyError: nothing does."""
    first, _, rest = path.partition(".")
    if not path:
        yield value
    elif first == "*":
        assert isinstance(value, list) and value
        for item in value:
            yield from find(item, rest)
    else:
        yield from find(value[first], rest)


def find_pods(manifest: Any) -> Iterator[Any]:
    """The pods' specifications, or the patches of them."""
    spec = manifest["spec"]
    path = "replicatedJobs.*.template.spec.template.spec"
    if manifest["kind"] == "JobSet":
        return find(spec, path)
    return find(spec, f"runtimePatches.*.trainingRuntimeSpec.template.spec.{path}")


MANIFESTS = pytest.mark.parametrize("name", ["kubernetes/jobset.yaml", "kubernetes/trainjob.yaml"])


@MANIFESTS
def test_a_manifest_has_what_its_kind_requires_and_nothing_unknown(name: str) -> None:
    manifest = read(name)
    for path in REQUIRED[f"{manifest['apiVersion']} {manifest['kind']}"]:
        assert all(find(manifest, path)), path
    assert {*manifest["spec"]} == KNOWN[manifest["kind"]]
    for pod in find_pods(manifest):
        assert {*pod} <= KNOWN["Pod"]
        assert all(value for path in POD_REQUIRED for value in find(pod, path))


@pytest.mark.kubernetes
@MANIFESTS
def test_a_manifest_is_whole_as_the_published_schema_reads_it(name: str) -> None:
    models = importlib.import_module("kubeflow_trainer_api.models")
    manifest = read(name)
    schema = getattr(models, PUBLISHED[manifest["kind"]])
    assert schema.from_dict(manifest).to_dict() == manifest  # it drops what it does not know
    pod = next(find_pods(manifest))
    pod["containers"][0]["volumeMount"] = pod["containers"][0].pop("volumeMounts")
    assert schema.from_dict(manifest).to_dict() != manifest
    pod["containers"] = pod["containers"][0]
    with pytest.raises(ValueError, match="Container"):
        schema.from_dict(manifest)


@MANIFESTS
def test_every_volume_that_is_mounted_is_there_and_the_runs_go_to_one(name: str) -> None:
    for pod in find_pods(read(name)):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes and mounts["runs"] == "/runs"
    assert "runs_dir=/runs" in (LAUNCH / name).read_text(encoding="utf-8")


def test_the_pods_of_a_jobset_meet_at_the_first_which_has_the_name_that_they_look_for() -> None:
    manifest = read("kubernetes/jobset.yaml")
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert {*spec} == KNOWN["Job"] and spec["completionMode"] == "Indexed" and job["replicas"] == 1
    assert spec["completions"] == spec["parallelism"]
    (container,) = spec["template"]["spec"]["containers"]
    script, bash, *words = container["args"]
    ran = run_script(script, bash, words, JOB_COMPLETION_INDEX="1", HOSTNAME="distprof-node-0-1", KEEP_S="0")
    first = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['spec']['network']['subdomain']}"
    assert read_options(ran) == {
        "nnodes": str(spec["completions"]), "nproc-per-node": str(container["resources"]["limits"]["nvidia.com/gpu"]),
        "max-restarts": "0", "rdzv-backend": "c10d", "rdzv-id": "distprof", "rdzv-endpoint": f"{first}:29500",
        "rdzv-conf": "is_host=0", "local-addr": "distprof-node-0-1.distprof",
    }  # fmt: skip
    assert ran[-4:] == ["-m", "distprof", "runs_dir=/runs", "train=gpt2_small"]
    ran = run_script(script, bash, words, JOB_COMPLETION_INDEX="0", HOSTNAME="distprof-node-0-0", KEEP_S="0")
    assert read_options(ran)["rdzv-conf"] == "is_host=1"


def test_the_machines_of_skypilot_meet_at_the_first() -> None:
    task = read("sky.yaml")
    assert {*task} == {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
    told = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "4", "SKYPILOT_NODE_RANK": "1"}
    ran = run_script(task["run"], "bash", [], **told, **task["envs"], SKYPILOT_NODE_IPS="10.0.0.5\n10.0.0.6")
    assert read_options(ran) == {
        "nnodes": "2", "nproc-per-node": "4", "node-rank": "1", "master-addr": "10.0.0.5", "master-port": "29500",
    }  # fmt: skip
    assert ran[-3:] == ["-m", "distprof", "train=gpt2_small"]


def test_a_trainjob_is_not_started_where_a_node_is_not_fit() -> None:
    trainer = read("kubernetes/trainjob.yaml")["spec"]["trainer"]
    (script,) = trainer["args"]
    assert trainer["command"] == ["bash", "-c"]
    assert run_script(script, "bash", []) == ["-m", "distprof", "runs_dir=/runs", "train=gpt2_small"]
    assert run_script(script, "bash", [], fit=False) == []


def run_script(script: str, name: str, words: list[str], *, fit: bool = True, **environment: str) -> list[str]:
    """The arguments of torchrun, as a manifest's script calls it; of Python, it asks for verbs that there are."""
    stand_ins = 'torchrun() { printf "%q " "$@"; }; python() { [[ "$1 $2" == "-m distprof" ]] && VERB "$3"; }\n'
    verbs = "|".join(VERBS)
    check = f'check() {{ [[ "$1" =~ ^({verbs})$ ]] && return {int(not fit)}; exit 99; }}\n'
    whole = check + stand_ins.replace("VERB", "check") + script.replace("exec torchrun", "torchrun")
    done = subprocess.run(
        ["bash", "-c", whole, name, *words], env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == int(not fit), done.stderr
    return shlex.split(done.stdout)


def read_options(words: list[str]) -> dict[str, str]:
    """The options of torchrun, each with its value."""
    options = words[: words.index("-m")]
    return {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=True)}
