"""The files of deploy/ are what their programs read, and every dragoman command in them is one."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml
from tests.test_docs import ROOT, command_line, commands, problem_of

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted([*DEPLOY.glob("*/*.sbatch"), *DEPLOY.glob("*/*.sh")])
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)

# What each directive may be; a directive that is not here is no option of sbatch that these files use.
DIRECTIVES = {
    "job-name": r"[\w-]+",
    "nodes": r"\d+",
    "ntasks": r"\d+",
    "ntasks-per-node": r"\d+",
    "gpus-per-node": r"\d+",
    "cpus-per-task": r"\d+",
    "time": r"\d+:\d\d:\d\d",
    "signal": r"(B:)?[A-Z0-9]+@\d+",
    "array": r"\d+-\d+",
    "requeue": "",
    "open-mode": "append|truncate",
    "output": r"[\w%.-]+",
}
FAKES = {
    "scontrol": "for i in 1 2 3; do echo 127.0.0.$i; sleep 0.01; done",
    "srun": '"$@"',
    "torchrun": 'printf "%s\\n" torchrun "$@"',
    "dragoman": 'printf "%s\\n" dragoman "$@"',
    "ray": 'printf "%s\\n" ray "$@"',
}


def read_objects(manifest: Path) -> list[dict[str, Any]]:
    return [dict(value) for value in ruamel.yaml.YAML(typ="safe").load_all(manifest.read_text())]


def find(value: Any, key: str) -> Iterator[Any]:
    """Every value of a key, however deep."""
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        if name == key:
            yield inner
        yield from find(inner, key)


def has_shards() -> bool:
    return any("--shards" in option.opts for option in command_line(True).commands["predict"].params)


# -- commands ----------------------------------------------------------------------------------------------------------


def written_commands() -> dict[str, list[list[str]]]:
    """The dragoman commands of each file of deploy/."""
    found: dict[str, list[list[str]]] = {}
    for path in [*SCRIPTS, *MANIFESTS]:
        text = path.read_text()
        comments = "".join(f"    {line[1:].strip()}\n" for line in text.split("\n") if line.startswith("#     "))
        lines = re.sub(r"\\\n\s*", "", text).split("\n")
        code = "".join(f"    {line.strip()}\n" for line in lines if not line.lstrip().startswith("#"))
        found[path.name] = list(commands(comments))
        found[path.name] += [words for words in commands(code) if path.suffix != ".yaml"]
    for manifest in MANIFESTS:
        for containers in find(read_objects(manifest), "containers"):
            for container in containers:
                words = [*container["command"], *container["args"]]
                if words[:2] == ["/bin/sh", "-c"]:
                    words = shlex.split(words[2])
                found[manifest.name].append(words[words.index("dragoman") + 1 :])
    return found


@pytest.mark.parametrize("file", written_commands())
def test_every_command_of_the_files_parses(file: str) -> None:
    found = written_commands()[file]
    assert found
    for words in found:
        if ("--shards" in words or words[0] == "shards") and not has_shards():
            continue
        assert problem_of(words) is None, words


# -- shell scripts -----------------------------------------------------------------------------------------------------


@every_script
def test_a_script_is_bash_and_its_directives_are_options_of_sbatch(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True, timeout=30)
    lines = script.read_text().split("\n")
    assert lines[0] == "#!/bin/bash"
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [(i, line) for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert bool(directives) == (script.suffix == ".sbatch")
    for number, line in directives:
        assert number < first_command  # sbatch reads none after it
        name, _, value = line.removeprefix("#SBATCH --").partition("=")
        assert re.fullmatch(DIRECTIVES[name], value), line


def run_script(script: Path, folder: Path, arguments: list[str], **variables: str) -> list[str]:
    """The words that a script calls its program with; the programs of a cluster are fakes on the PATH."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, body in FAKES.items():
        if not (programs / name).exists():
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (programs / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        ["bash", str(script), *arguments], env=environment, capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n").split("\n")


def test_a_task_of_an_array_predicts_its_shards_and_all_together_each_one(tmp_path: Path) -> None:
    seen = []
    for task in range(3):
        variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "3"}
        script = DEPLOY / "slurm/predict-array.sbatch"
        words = run_script(script, tmp_path, ["runs/a b", "lines.txt", "out"], **variables)
        assert words[:6] == ["dragoman", "predict", "runs/a b", "lines.txt", "--shards", "out"]
        seen.append(words[-1])
    assert seen == ["1/3", "2/3", "3/3"]


def test_a_training_starts_torchrun_on_each_machine_with_one_meeting_point(tmp_path: Path) -> None:
    variables = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8"}
    words = run_script(
        DEPLOY / "slurm/train.sbatch", tmp_path, ["c.yaml", "runs/a b"], SLURM_JOB_ID="4321", **variables
    )
    end = words.index("-m")
    options = dict(zip(words[1:end:2], words[2:end:2], strict=True))
    assert options["--nnodes"] == "2"
    assert options["--nproc-per-node"] == "8"
    assert options["--rdzv-endpoint"] == "127.0.0.1:24321"
    assert words[end:] == ["-m", "--", "dragoman", "train", "c.yaml", "--run", "runs/a b"]


def test_a_ray_job_is_the_same_command_on_ray(tmp_path: Path) -> None:
    words = run_script(DEPLOY / "ray/predict.sh", tmp_path, ["model", "lines.txt", "out"])
    assert words[:3] == ["ray", "job", "submit"]
    runtime = ruamel.yaml.YAML(typ="safe").load(Path(words[words.index("--runtime-env") + 1]).read_text())
    assert set(runtime) <= {"pip", "env_vars"}
    assert words[words.index("--") + 1 :] == [
        *["dragoman", "predict", "model", "lines.txt", "--shards", "out", "--executor", "ray"]
    ]


def is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


TINY = """
data: {{train: {folder}/train.tsv, valid: {folder}/train.tsv}}
tokenizer: {{source: characters}}
model:
  width: 16
  encoder: {{name: transformer, layers: 1, heads: 2}}
  decoder: {{name: transformer, layers: 1, heads: 2}}
training: {{steps: 6, schedule: constant}}
runtime: {{device: cpu, threads: 1}}
"""


@pytest.mark.long
def test_the_script_of_slurm_trains_on_two_machines(tmp_path: Path) -> None:
    """Two machines are two torchruns here: srun starts its command twice."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/bash\n"$@" & first=$!\n"$@" & second=$!\nwait $first && wait $second\n')
    (programs / "torchrun").write_text(f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    for name in ("srun", "torchrun"):
        (programs / name).chmod(0o755)
    (tmp_path / "train.tsv").write_text("".join(f"{'ab' * (i % 4 + 1)}\t{'ba' * (i % 4 + 1)}\n" for i in range(40)))
    (tmp_path / "c.yaml").write_text(TINY.format(folder=tmp_path))
    variables = {"SLURM_JOB_NODELIST": "two", "SLURM_NNODES": "2"}
    variables["SLURM_JOB_ID"] = str(
        next(number for number in range(os.getpid(), 10**7) if is_free(20000 + number % 10000))
    )
    run_script(DEPLOY / "slurm/train.sbatch", tmp_path, ["c.yaml", "run"], OMP_NUM_THREADS="1", **variables)
    assert (tmp_path / "run/finished").read_text() == "6\n"
    assert '"ranks": 2' in (tmp_path / "run/env.json").read_text()


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@every_manifest
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for value in read_objects(manifest):
        kubernetes_validate.validate(value, kubernetes_validate.latest_version(), strict=True)


API = {"Job": "batch/v1", "Service": "v1", "Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}


@every_manifest
def test_the_objects_of_a_manifest_fit_each_other(manifest: Path) -> None:
    """What a schema cannot see: selectors match labels, mounts have volumes, quantities and numbers agree."""
    objects = read_objects(manifest)
    labels = [template["metadata"]["labels"] for template in find(objects, "template")]
    for value in objects:
        assert value["apiVersion"] == API[value["kind"]]
        assert re.fullmatch(r"[a-z0-9-]+", value["metadata"]["name"])
        selector = value["spec"].get("selector", {})
        if selector:
            assert selector.get("matchLabels", selector) in labels
    for pod in (template["spec"] for template in find(objects, "template")):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
            assert all(port in ports for probe in find(container, "httpGet") for port in [probe["port"]])
            if ports:
                assert str(ports["http"]) == container["args"][container["args"].index("--port") + 1]


def test_an_indexed_job_has_a_pod_for_each_shard() -> None:
    [job] = read_objects(DEPLOY / "kubernetes/predict-job.yaml")
    [script] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    count = job["spec"]["completions"]
    assert job["spec"]["completionMode"] == "Indexed"
    for index in range(count):
        text = script.replace("exec dragoman", "echo")
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            env={"JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stdout.split()[-1] == f"{index + 1}/{count}"


def test_the_pods_of_a_training_meet_at_the_first_of_them() -> None:
    service, job = read_objects(DEPLOY / "kubernetes/train-job.yaml")
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert f"--nnodes={job['spec']['completions']}" in container["args"]
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert job["spec"]["template"]["spec"]["subdomain"] == name
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{name}:{port}" in container["args"]
    [gpus] = find(container, "nvidia.com/gpu")
    assert f"--nproc-per-node={gpus}" in container["args"]
