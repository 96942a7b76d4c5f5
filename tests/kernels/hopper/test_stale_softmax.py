"""The PTX of `settle`, run by a small interpreter, against its equivalent in the simulator, held to its aim."""

import re

import pytest
import torch

from kernels.hopper.stale_softmax import LIMIT, _settling
from kernels.simulator.inline_blocks import block_of

LANES = torch.arange(32)
SCALE = 0.25


def interpret(asm, constraints, operands):
    """A warp's results ``[results][32]`` of a block on fp32 ``operands [32]``, in their order."""
    results = constraints.count("=")
    registers = {f"${results + i}": value for i, value in enumerate(operands)}
    registers |= {f"${i}": torch.full((32,), torch.nan) for i in range(results)}
    lines = [line.strip() for line in asm.split("\n")]
    at = 0
    while at < len(lines):
        line = lines[at].rstrip(";")
        at += 1
        if not line or line[0] in "/{}." or line.endswith(":"):
            continue
        if line.startswith("@!any bra"):
            if not registers["any"].any():
                at = lines.index("DONE:")
            continue
        opcode, *names = re.split(r",? +", line)
        value = [registers[name] if name in registers else number(name) for name in names[1:]]
        registers[names[0]] = run(opcode, value)
    return [registers[f"${i}"] for i in range(results)]


def number(text):
    constants = {"0fFF800000": -torch.inf, "0f00000000": 0.0}
    return torch.full((32,), constants[text] if text in constants else float(int(text, 0) if "x" in text else text))


def run(opcode, value):
    name = opcode.split(".")[0]
    if name == "shfl":
        return value[0][LANES ^ int(value[1][0])]
    if name == "vote":
        return value[0].any().expand(32)
    if name == "setp":
        return ~(value[0] <= value[1]) if ".gtu." in opcode else value[0] == value[1]
    simple = {"mov": lambda a: a, "neg": lambda a: -a, "add": torch.add, "sub": torch.sub, "mul": torch.mul,
              "max": torch.fmax, "fma": lambda a, b, c: torch.addcmul(c, a, b), "ex2": torch.exp2,
              "selp": lambda a, b, p: torch.where(p.bool(), a, b)}
    return simple[name](*value)


def operands_of(case, scores, outputs):
    """Parts ``[64, 4]``: s, p, m, norm, sums, scale, acc. In the case's name: what the block does to row 5."""
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(scores, 64, 4, generator=generator) * 8
    m = torch.full((64, 4), 10.0)
    norm = torch.rand(64, 4, generator=generator) + 1
    if case == "grows":
        s[3, 5, 2] = 400.0
    elif case == "overflows":
        s[3, 5, 2] = 1e6
    elif case == "is the first":
        m[5], norm[5] = -torch.inf, 0.0
    elif case == "is masked":
        s[:, 5], m[5], norm[5] = -torch.inf, -torch.inf, 0.0
    elif case == "is no number":
        s[3, 5, 2] = torch.nan
    p = torch.exp2(s * SCALE - m)
    acc = torch.randn(outputs, 64, 4, generator=generator)
    return [*s, *p, m, norm, p.sum(0), torch.full((64, 4), SCALE), *acc]


def by_threads(part, warp):
    """A part's two elements in each of a warp's 32 threads: rows r and r + 8, column c of thread 4 r + c."""
    rows = part[16 * warp:16 * warp + 16]
    return rows[:8].reshape(32), rows[8:].reshape(32)


CASES = ["stays", "grows", "overflows", "is the first", "is masked", "is no number"]


@pytest.mark.parametrize(("scores", "outputs"), [(16, 16), (16, 32), (32, 32)])
@pytest.mark.parametrize("case", CASES)
def test_the_ptx_does_what_the_simulator_does(case, scores, outputs):
    operands = operands_of(case, scores, outputs)
    asm, constraints = _settling(scores, outputs)
    _, equivalent = block_of(asm)
    expected = equivalent(operands)
    for warp in range(4):
        threads = [element for part in operands for element in by_threads(part, warp)]
        got = interpret(asm, constraints, threads)
        wanted = [element for part in expected for element in by_threads(part, warp)]
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_only_the_warp_that_must_does_it_again(case):
    operands = operands_of(case, 16, 16)
    asm, _ = _settling(16, 16)
    m, before = block_of(asm)[1](operands)[16], operands[32]
    changed = (m != before).any(1)
    assert changed[:16].any() == (case in {"grows", "overflows", "is the first"})
    assert not changed[16:].any()


@pytest.mark.parametrize("case", ["stays", "grows", "is the first", "is masked"])
def test_state_and_probabilities_belong_together(case):
    """After a block: O and norm are sums of ``2^(s - m)``, whatever m a row keeps."""
    operands = operands_of(case, 16, 16)
    s, m, norm, acc = torch.stack(operands[:16]).double(), operands[32].double(), operands[33].double(), operands[36]
    out = block_of(_settling(16, 16)[0])[1](operands)
    p, new_m, new_norm, new_acc = torch.stack(out[:16]), out[16].double(), out[17], out[18]
    origin = torch.where(new_m.isneginf(), 0.0, new_m)
    assert not torch.cat([p.flatten(), new_norm.flatten()]).isnan().any()
    assert (p.sum(0) <= LIMIT.value).all()
    torch.testing.assert_close(p.double(), torch.exp2(s * SCALE - origin), rtol=1e-4, atol=1e-30)
    kept = torch.exp2(m - origin)
    torch.testing.assert_close(new_norm.double(), norm * kept + p.double().sum(0), rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(new_acc.double(), acc.double() * kept, rtol=1e-5, atol=1e-30)


def test_results_share_no_register_with_operands_still_to_be_read():
    _, constraints = _settling(16, 16)
    results = [each for each in constraints.split(",") if each.startswith("=")]
    assert results
    assert set(results) == {"=&f"}
