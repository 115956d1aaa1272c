"""Metrics of workers, labelled."""

from prorsa.cluster.router.control import label_samples


def test_every_sample_names_its_worker() -> None:
    text = b"""# HELP a what
# TYPE a counter
sglang:a{model="m"} 1.0
sglang:b 2.0
"""
    assert (
        label_samples(text, "w1")
        == b"""sglang:a{worker="w1",model="m"} 1.0
sglang:b{worker="w1"} 2.0
"""
    )
