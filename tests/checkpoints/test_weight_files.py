"""Files of other programs: read once, bounded, and nothing in them runs."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.checkpoints.weight_files import MOST_REFERENCE, read_reference, read_weights

MOST = 10**6
WEIGHTS = {"a": torch.arange(6.0).view(2, 3)}


def refusal(path, most=MOST):
    with pytest.raises(CheckpointError) as caught:
        read_weights(path, most)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_both_kinds_are_told_apart_by_content(tmp_path):
    save_file(WEIGHTS, tmp_path / "one.bin")
    torch.save(WEIGHTS, tmp_path / "two.bin")
    for name in ("one.bin", "two.bin"):
        assert torch.equal(read_weights(tmp_path / name, MOST)["a"], WEIGHTS["a"])


class Runs:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_nothing_is_executed(tmp_path):
    decoy = tmp_path / "executed"
    torch.save({"a": Runs(str(decoy))}, tmp_path / "evil.pt")
    assert "it contains Python objects" in refusal(tmp_path / "evil.pt")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Runs(str(decoy))))
    assert "got a plain pickle" in refusal(tmp_path / "evil.pkl")
    assert not decoy.exists()


def test_a_whole_model_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    assert "save model.state_dict() instead of the model" in refusal(tmp_path / "model.pt")


def test_other_values_are_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    assert "expected a state dict (tensors by name), got list" in refusal(tmp_path / "list.pt")


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04 no archive", b"text", b"\xff" * 99])
def test_foreign_contents(content, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(content)
    refusal(path)


@pytest.mark.parametrize("kept", [0.3, 0.9])
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_truncated_files(kind, kept, tmp_path):
    path = tmp_path / "weights"
    torch.save(WEIGHTS, path) if kind == "torch" else save_file(WEIGHTS, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    refusal(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(WEIGHTS, path)
    content = bytearray(path.read_bytes())
    where = content.index(WEIGHTS["a"].numpy().tobytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert refusal(path).endswith("damaged (a checksum is wrong)")


def repacked(path, values, compression, copies=1):
    """A file of torch.save, packed again; `copies` entries share the bytes of each member."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w", compression) as out:
        for member in source.namelist():
            out.writestr(member, source.read(member))
        out.filelist *= copies
    return path


@pytest.mark.parametrize("values", [torch.zeros(10**6), torch.rand(100)], ids=["bomb", "random"])
def test_compressed_archives_are_refused(tmp_path, values):
    path = repacked(tmp_path / "weights.pt", {"a": values}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < MOST
    assert refusal(path).endswith("this one is compressed")


def test_archives_that_use_their_bytes_twice_are_refused(tmp_path):
    path = repacked(tmp_path / "weights.pt", {"a": torch.rand(5000)}, zipfile.ZIP_STORED, 9)
    assert "its contents are larger than the file" in refusal(path)


def test_only_regular_files_of_a_bounded_size(tmp_path):
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "zero", "directory"):
        assert "expected a regular file" in refusal(tmp_path / name)
    save_file(WEIGHTS, tmp_path / "large")
    assert "expected at most 50 bytes, got more" in refusal(tmp_path / "large", most=50)


def test_reference_files(tmp_path):
    tokens = torch.tensor([[0, 1], [1, 0]])
    outputs = torch.full((2, 2, 2), 0.5)
    save_file({"tokens": tokens, "outputs": outputs}, tmp_path / "reference.safetensors")
    np.savez_compressed(tmp_path / "reference.npz", tokens=tokens, outputs=outputs)
    for name in ("reference.safetensors", "reference.npz"):
        found = read_reference(tmp_path / name)
        assert torch.equal(torch.as_tensor(found[0]), tokens)
        assert torch.equal(torch.as_tensor(found[1]), outputs)


def reference_refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_reference(path)
    return str(caught.value)


def test_reference_files_that_do_not_fit(tmp_path):
    path = tmp_path / "reference"
    save_file({"tokens": torch.ones(2)}, path)
    assert reference_refusal(path).endswith('"tokens" and "outputs", got tokens')
    np.savez(tmp_path / "objects.npz", tokens=np.array([{}]), outputs=np.ones(2))
    assert "not written by numpy.savez" in reference_refusal(tmp_path / "objects.npz")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
    greedy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "greedy.npz", "w") as archive:
        archive.writestr("tokens.npy", greedy)
        archive.writestr("outputs.npy", greedy)
    assert "not written by numpy.savez" in reference_refusal(tmp_path / "greedy.npz")
    large = np.zeros(MOST_REFERENCE + 1, dtype=np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", tokens=large)
    assert "when unpacked" in reference_refusal(tmp_path / "bomb.npz")
    path.write_bytes(b"text")
    assert "expected a safetensors file or an archive written by numpy.savez" in reference_refusal(
        path
    )
