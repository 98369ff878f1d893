"""Imports a copy of the package from each folder, in a process of its own that has torch already.

python import_each.py folder...    # prints a list: what each import raised, or how it ended
"""

import json
import os
import sys

import torch


def outcome(folder: str) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        sys.path.insert(0, folder)
        try:
            import torch_dnnl

            said = f"imported {torch_dnnl.functional.reorder(torch.ones(2, 3), 'ba').sum().item()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read() or f"ended with status {status}"


if __name__ == "__main__":
    # Not what is installed, nor, in editable mode, by a finder.
    sys.path = [p for p in sys.path if not os.path.exists(os.path.join(p, "torch_dnnl"))]
    sys.meta_path = [f for f in sys.meta_path if "editable" not in f.__module__]
    print(json.dumps([outcome(folder) for folder in sys.argv[1:]]))
