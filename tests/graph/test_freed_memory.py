"""The memory of intermediate results stays with the process from call to call."""

import os
import subprocess
import sys

COUNT_FAULTS = """
import resource
import torch
import torch_dnnl

# Results of 4, 1 and 9 MB. The chain frees each of them before the next but one is made.
layers = [torch.nn.Conv2d(8, 64, 1), torch.nn.Conv2d(64, 16, 1), torch.nn.Conv2d(16, 144, 1)]
model = torch.nn.Sequential(*layers, torch.nn.Conv2d(144, 8, 1)).eval()
x = torch.rand(1, 8, 128, 128)
optimized = torch_dnnl.optimize(model, (x,))
with torch.no_grad():
    for _ in range(5):
        optimized(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        optimized(x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def faults_of_a_call(**choices):
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", COUNT_FAULTS]
    done = subprocess.run(
        command, env=environment | choices, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def test_calls_take_no_page_faults():
    assert faults_of_a_call() < 50  # the results have 3,600 pages


def test_thresholds_of_the_environment_stay():
    assert faults_of_a_call(MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_THRESHOLD_="65536") > 500
