"""A batch on a Ray cluster of this machine: the bytes of a local run, also when workers or the job are killed."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from batch_rig import WAVE_ROWS, rows, run, work_on, write_rows
from branchwise.batch.job import run_job
from branchwise.batch.output import OutputFile
from ray_rig import SMALL, own_processes
from tiny_folder import save_tiny_model

# Ray is an extra, large and not for every platform
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")
COUNT = 26


@pytest.fixture(scope="module")
def cluster():
    """Ray with two workers, ended afterwards."""
    import ray

    from branchwise.batch.cluster import Cluster

    yield Cluster(workers=2, init=SMALL)
    ray.shutdown()


def test_killed_in_every_way_the_output_is_that_of_a_local_run(cluster, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny", chat=True)
    source = write_rows(tmp_path / "in.jsonl", rows(COUNT))
    work = work_on(source, model, dtype="bfloat16")
    run(work, tmp_path / "local.jsonl")
    expected = (tmp_path / "local.jsonl").read_bytes()
    out = tmp_path / "out.jsonl"

    class Crash(Exception):
        pass

    def crashing(waves):
        yield from islice(cluster.answers(work, waves), WAVE_ROWS + 2)
        raise Crash

    with pytest.raises(Crash):
        run_job(work, out, WAVE_ROWS, crashing)
    assert out.read_bytes().count(b"\n") == WAVE_ROWS + 2
    OutputFile(out).append(b'{"torn')  # by a kill in mid-write

    def losing_a_worker(waves):
        for number, answer in enumerate(cluster.answers(work, waves)):
            if number == 0:
                own_processes("_WaveActor")[0].kill()
            yield answer

    tally = run_job(work, out, WAVE_ROWS, losing_a_worker)
    assert out.read_bytes() == expected
    assert tally.done == COUNT and tally.fresh == COUNT - WAVE_ROWS - 2
