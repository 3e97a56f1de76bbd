"""Every Python sample of README and docs runs, or says why it is not run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from our_broker import OurBroker
from samples import Sample, all_samples

SAMPLES = all_samples()


def named(sample: Sample) -> str:
    return sample.name


@pytest.fixture(scope="module")
def fresh_broker() -> Iterator[OurBroker]:
    """A broker whose topics nobody used before: the samples name theirs like a reader would."""
    with OurBroker() as broker:
        yield broker


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.runs], ids=named)
def test_a_sample_runs(sample: Sample, fresh_broker: OurBroker) -> None:
    sample.run(fresh_broker.service_url)


@pytest.mark.parametrize("sample", SAMPLES, ids=named)
def test_a_sample_is_run_or_says_why_not(sample: Sample) -> None:
    assert sample.runs or sample.mark.removeprefix("not run:").strip() not in ("", sample.mark)


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if not sample.runs], ids=named)
def test_a_sample_that_is_not_run_is_python(sample: Sample) -> None:
    body = "".join(f"    {line}\n" for line in sample.code.splitlines())
    compile(f"async def sample():\n{body}", sample.name, "exec")


def test_the_readme_has_a_sample_that_runs() -> None:
    assert [sample for sample in SAMPLES if sample.page.name == "README.md" and sample.runs]


@pytest.mark.parametrize("sample", SAMPLES, ids=named)
def test_a_sample_that_awaits_takes_the_asyncio_client(sample: Sample) -> None:
    """Also one that is not run: `Client` blocks, `AsyncClient` awaits."""
    assert not re.search(r"async with (\w+\.)?Client\(", sample.code)
