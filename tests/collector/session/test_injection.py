"""Programs that know nothing of the recorder: every process and thread of them is recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import fork_program
from tests.support.recording import Recorded, record_program, run_program, write_program


def processes(recorded: Recorded) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((recorded.run / "manifest.json").read_text())[
        "processes"
    ]
    return found


def test_threads_get_lanes_and_their_events(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import threading, _thread, torch
        from concurrent.futures import ThreadPoolExecutor

        class Derived(threading.Thread):
            def run(self):
                torch.ones(2).neg()

        derived = Derived(name="derived")
        derived.start()
        derived.join()
        with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
            pool.submit(lambda: torch.ones(2).abs()).result()
        done = threading.Event()
        def raw(event):
            torch.manual_seed(0)
            torch.ones(2).sqrt()
            event.set()
        _thread.start_new_thread(raw, (done,))
        done.wait()
        assert threading.active_count() == 1, threading.enumerate()
        """,
    )
    assert recorded.status == 0, recorded.stderr
    rows = recorded.rows("thread")
    assert [r["name"] for r in rows][:3] == ["main", "derived", "pool_0"]
    by_thread = {r["name"]: recorded.op_names(thread=str(r["name"])) for r in rows}
    assert by_thread["derived"] == ["aten::ones", "aten::neg"]
    assert by_thread["pool_0"] == ["aten::ones", "aten::abs"]
    assert [o for ops in list(by_thread.values())[3:] for o in ops] == ["aten::ones", "aten::sqrt"]
    ids = {r["name"]: r["thread"] for r in rows}

    def events_of(thread: str) -> list[tuple[object, object]]:
        rows = recorded.rows("sync", thread=thread)
        return [(s["kind"], s["peer"]) for s in rows if str(s["kind"]).startswith("thread_")]

    events = events_of("main")
    assert events[:2] == [("thread_start", ids["derived"]), ("thread_join", ids["derived"])]
    assert events_of("derived") == [("thread_begin", ids["main"]), ("thread_end", None)]


FINDS = """
    import importlib.util, sys
    sys.path.insert(0, sys.argv[1])
    from lanescope.collector import inject
    started = []
    inject._start = lambda: started.append("torch" in sys.modules)
    inject.bootstrap()
    assert importlib.util.find_spec("torch").name == "torch"
    assert importlib.util.find_spec("torch").name == "torch"
    import torch
    print(started, [one for one in sys.meta_path if isinstance(one, inject._AfterTorch)])
"""


def test_a_program_may_look_for_torch_before_it_imports_it(tmp_path: Path) -> None:
    """As transformers and datasets do."""
    (tmp_path / "torch.py").write_text("")
    command = [sys.executable, write_program(tmp_path, FINDS), str(tmp_path)]
    environment = {"LANESCOPE_RECORD": str(tmp_path / "run"), "PYTHONPATH": None}
    done = run_program(command, environment=environment)
    assert (done.returncode, done.stdout) == (0, "[True] []\n"), done.stderr


@pytest.mark.slow
def test_loader_workers_and_spawned_processes_are_recorded(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import subprocess, sys, torch
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return torch.tensor(float(i)).neg()

        def child():
            torch.ones(3).cosh()

        if __name__ == "__main__":
            total = sum(float(batch.sum()) for batch in DataLoader(Numbers(), 2, num_workers=2))
            assert total == -28.0
            context = torch.multiprocessing.get_context("spawn")
            process = context.Process(target=child)
            process.start()
            process.join()
            subprocess.run([sys.executable, "-c", "import torch; torch.ones(3).sinh()"], check=True)
        """,
    )
    assert recorded.status == 0, recorded.stderr
    roles = sorted(str(p["role"]) for p in processes(recorded))
    assert roles == ["child", "child", "child", "rank", "rank"]
    assert all(p["closed"] for p in processes(recorded))
    assert {"loader worker 0", "loader worker 1"} <= {r["name"] for r in recorded.rows("thread")}
    names = recorded.op_names()
    assert names.count("aten::neg") == 8
    assert {"aten::cosh", "aten::sinh"} <= set(names)
    kinds = [(p["name"], p["kind"]) for p in recorded.rows("phase")]
    assert kinds.count(("fetch", "data")) == 4
    assert kinds.count(("next(loader)", "data")) == 5  # the fifth finds the end


def test_a_process_without_torch_leaves_nothing(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, "print('no torch here')", real=True)
    assert (recorded.status, recorded.stdout) == (0, "no torch here\n")
    assert not recorded.run.exists()


def test_the_sites_own_customisation_still_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.customised = True\n")
    program = write_program(tmp_path, "print(customised, __import__('sitecustomize').__file__)")
    command = [
        str(Path(sys.executable).parent / "lanescope"),
        "record",
        "-o",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        str(program),
    ]
    done = run_program(command, environment={"PYTHONPATH": str(site)})
    assert done.stdout == f"True {site / 'sitecustomize.py'}\n"


def test_a_removed_current_folder_does_no_harm(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = write_program(tmp_path, "print('torch itself computes nothing there')")
    recorder = Path(sys.executable).parent / "lanescope"
    shell = f"cd {gone} && rmdir {gone} && exec {recorder} record -o {tmp_path / 'run'} --"
    done = run_program(["sh", "-c", f"{shell} {sys.executable} {program}"])
    assert (done.returncode, done.stdout) == (0, "torch itself computes nothing there\n")
    assert "sitecustomize" not in done.stderr


def test_the_environment_alone_records(tmp_path: Path) -> None:
    program = write_program(tmp_path, "import torch; torch.ones(2).tan()")
    run = tmp_path / "run"
    done = run_program([sys.executable, str(program)], environment={"LANESCOPE_RECORD": str(run)})
    assert done.returncode == 0, done.stderr
    recorded = Recorded(run, 0, "", "")
    assert recorded.op_names() == ["aten::ones", "aten::tan"]
    assert not (run / "journal").exists()


@pytest.mark.slow
def test_the_launcher_form_records_a_script_with_its_arguments(tmp_path: Path) -> None:
    program = write_program(
        tmp_path, "import sys, torch; torch.ones(2).tan(); print(sys.argv[1:], __name__)"
    )
    run = tmp_path / "run"
    done = run_program(
        [
            sys.executable,
            "-m",
            "lanescope.collector",
            "-o",
            str(run),
            "--level",
            "timing",
            str(program),
            "--epochs",
            "3",
        ]
    )
    assert (done.returncode, done.stdout) == (0, "['--epochs', '3'] __main__\n")
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["level"], manifest["complete"]) == ("timing", True)


def test_a_module_in_a_folder_that_was_removed_runs_as_without_a_recorder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; {sys.executable} -m lanescope.collector -o {tmp_path}/run -m this"
    done = run_program(["sh", "-c", f"cd {gone}; {command}"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "Namespaces" in done.stdout


@pytest.mark.parametrize("flag", ["-B", pytest.param("-O", marks=pytest.mark.slow)])
def test_nothing_is_hooked_without_a_recording(tmp_path: Path, flag: str) -> None:
    """The program's interpreter has no trace of the recorder. -O compiles all of torch again."""
    program = write_program(
        tmp_path,
        """
        import sys, threading, torch
        from torch.nn.modules import module
        from torch.optim import optimizer
        assert not [name for name in sys.modules if name.startswith("lanescope")]
        before = threading.Thread.start, torch.autograd._engine_run_backward
        import lanescope.collector as ls
        ls.mark("a"); ls.value("b", 1); ls.step()
        with ls.phase("c"):
            pass
        hooks = (module._global_forward_hooks, module._global_forward_pre_hooks,
                 optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
        if any(hooks) or before != (threading.Thread.start, torch.autograd._engine_run_backward):
            sys.exit("hooked")
        if torch._C._len_torch_dispatch_stack() or "pyarrow" in sys.modules:
            sys.exit("loaded")
        """,
    )
    done = run_program([sys.executable, flag, str(program)])
    assert done.returncode == 0, done.stderr


def test_all_hooks_are_gone_after_the_recording(tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        """
        import _thread, sys, threading, torch
        import lanescope.collector as ls
        from torch.nn.modules import module
        from torch.optim import optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        def state():
            return (
                threading.Thread.start, threading.Thread.join, threading.Thread._bootstrap_inner,
                _thread.start_new_thread, torch.autograd._engine_run_backward,
                torch.autograd.graph._engine_run_backward, _BaseDataLoaderIter.__next__,
                len(module._global_forward_hooks), len(module._global_forward_pre_hooks),
                len(optimizer._global_optimizer_pre_hooks), torch._C._len_torch_dispatch_stack(),
            )

        before = state()
        with ls.record(sys.argv[1]):
            assert state() != before
            with ls.phase("backward"):
                ls.mark("thread 3 start")
                ls.value("grad_norm", 0.25)
            with ls.record("ignored inside a recording"):
                torch.ones(2).tan()
            ls.step()
        assert state() == before
        torch.ones(2).sin()
        """,
    )
    run = tmp_path / "run"
    done = fork_program(program, str(run))
    assert done.returncode == 0, done.stderr
    recorded = Recorded(run, 0, "", "")
    assert recorded.op_names() == ["aten::ones", "aten::tan"]
    assert [(p["name"], p["kind"]) for p in recorded.rows("phase")] == [
        ("backward", "backward"),
        ("thread 3 start", "mark"),
    ]
    values = {(v["name"], v["value"], v["step"]) for v in recorded.rows("value")}
    assert ("grad_norm", 0.25, 0) in values
