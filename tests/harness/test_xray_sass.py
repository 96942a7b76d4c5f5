"""Reading machine code: blocks, loops, roles and what is counted, on small kernels written by hand."""

import pytest

from harness.xray.control_flow import dominators, natural_loops
from harness.xray.main_loops import AT_LAUNCH, find_roles
from harness.xray.reading import allocated_columns, register_requests, threads
from harness.xray.sass import Sass

HEAD = "//--------------------- .text.k     --------------------------"
# A loader and a consumer behind one branch. Both retry their waits out of line; the consumer has a masked loop (with
# FSEL) before the plain one, and spills once before its loops.
WARP_SPECIALISED = """
    ISETP.NE.AND P0, PT, R0, RZ, PT ;
    @P0 BRA `(.L_x_1) ;
    USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ;
    STL.64 [R1], R2 ;
.L_x_2:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_20) ;
.L_x_3:
    HGMMA.64x64x16.F32.BF16 R24, R148, gdesc[UR8], R24 ;
    MUFU.EX2 R5, R5 ;
    FSEL R5, R5, RZ, P2 ;
    FSEL R6, R6, RZ, P2 ;
    FSEL R7, R7, RZ, P2 ;
    @P3 BRA `(.L_x_2) ;
.L_x_4:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_21) ;
.L_x_5:
    HGMMA.64x64x16.F32.BF16 R24, R148, gdesc[UR8], R24 ;
    MUFU.EX2 R5, R5 ;
    FFMA R5, R5, R6, R7 ;
    FFMA2 R8, R8, R6, R7 ;
    @P3 BRA `(.L_x_4) ;
    EXIT ;
.L_x_1:
    USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
.L_x_6:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_22) ;
.L_x_7:
    UTMALDG.3D [UR16], [UR26] ;
    @P4 BRA.U.ANY `(.L_x_7) ;
    SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ ;
    @P3 BRA `(.L_x_6) ;
    EXIT ;
.L_x_20:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_20) ;
    BRA `(.L_x_3) ;
.L_x_21:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_21) ;
    BRA `(.L_x_5) ;
.L_x_22:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_22) ;
    BRA `(.L_x_7) ;
"""


def sass(body):
    lines, address = [HEAD], 0
    for line in body.strip().splitlines():
        if line.startswith("."):
            lines.append(line)
        else:
            lines.append(f"        /*{address:04x}*/                   {line.strip()}")
            address += 16
    return Sass.parse("\n".join(lines))


def roles(body):
    return {role.name: role for role in find_roles(sass(body))}


def test_each_role_has_its_registers_and_main_loop():
    found = roles(WARP_SPECIALISED)
    assert list(found) == ["load", "mma+softmax"]
    assert found["load"].registers == (24,)
    assert found["mma+softmax"].registers == (232,)
    assert found["load"].counts["tma_load"] == 1
    assert found["load"].counts["mbar_arrive"] == 1


def test_the_loop_in_steady_state_stands_for_a_role():
    consumer = roles(WARP_SPECIALISED)["mma+softmax"]
    assert consumer.loops == 2
    assert consumer.counts["mma"] == consumer.counts["ex2"] == 1
    assert consumer.counts["instructions"] == 8  # 7 and the way back from a retry; the masked loop has one more


def test_exponentials_computed_otherwise_do_not_make_a_loop_the_lesser():
    emulated = WARP_SPECIALISED.replace("    FSEL R5, R5, RZ, P2 ;\n", "    MUFU.EX2 R5, R5 ;\n" * 2)
    assert roles(emulated)["mma+softmax"].counts["ex2"] == 1


def test_a_wait_counts_once_and_a_packed_instruction_as_one():
    consumer = roles(WARP_SPECIALISED)["mma+softmax"]
    assert consumer.counts["mbar_wait"] == 1
    assert (consumer.counts["ffma"], consumer.counts["packed"]) == (2, 1)


def test_a_retry_out_of_line_may_set_a_register_first():
    head, _, tail = WARP_SPECIALISED.partition(".L_x_22:\n")
    retry = f"{head}.L_x_22:\n    MOV R7, UR33 ;\n.L_x_23:\n" + tail.replace("BRA `(.L_x_22)", "BRA `(.L_x_23)")
    assert roles(retry)["load"].counts["mbar_wait"] == 1


def test_a_wait_that_only_spins_counts_too():
    in_line = WARP_SPECIALISED.replace("""    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2 ;
    @!P1 BRA `(.L_x_22) ;
.L_x_7:""", """    BRA `(.L_x_22) ;
.L_x_7:""")
    assert roles(in_line)["load"].counts["mbar_wait"] == 1


def test_spills_belong_to_the_role_that_spills():
    found = roles(WARP_SPECIALISED)
    assert {name: role.local_bytes for name, role in found.items()} == {"load": 0, "mma+softmax": 8}


def test_without_setmaxnreg_registers_are_as_launched():
    body = "\n".join(line for line in WARP_SPECIALISED.splitlines() if "USETMAXREG" not in line)
    assert {role.registers for role in roles(body).values()} == {(AT_LAUNCH,)}


def test_an_instruction_repeated_for_other_lanes_is_no_loop():
    assert roles(WARP_SPECIALISED)["load"].loops == 1


def test_a_small_loop_that_waits_for_nothing_counts_within_its_main_loop():
    nested = WARP_SPECIALISED.replace("    FFMA R5, R5, R6, R7 ;\n", """.L_x_9:
    HGMMA.64x64x16.F32.BF16 R24, R148, gdesc[UR8], R24 ;
    @P5 BRA `(.L_x_9) ;
""")
    assert roles(nested)["mma+softmax"].counts["mma"] == 2


def test_a_jump_through_a_table_reaches_each_of_its_targets():
    code = sass("""
    BRX R4 -0x10                             (*"BRANCH_TARGETS .L_x_1,.L_x_2"*) ;
.L_x_1:
    EXIT ;
.L_x_2:
    EXIT ;
""")
    assert code.successors == ((1, 2), (), ())
    assert code.code_bytes == 48


def test_code_of_no_kernel_is_refused():
    with pytest.raises(ValueError, match="code of one kernel"):
        Sass.parse("")


def test_loops_and_dominators_of_a_graph():
    #  0 -> 1 -> 2 -> 3 -> 1 ; 2 -> 2 ; 3 -> 4
    successors = [[1], [2], [2, 3], [1, 4], []]
    assert dominators(successors) == {0: 0, 1: 0, 2: 1, 3: 2, 4: 3}
    assert [(loop.header, set(loop.blocks)) for loop in natural_loops(successors)] == [(1, {1, 2, 3}), (2, {2})]


def test_a_jump_into_the_middle_makes_no_natural_loop():
    assert natural_loops([[1, 2], [2], [1]]) == []


def test_what_the_ptx_says():
    ptx = """.reqntid 512, 1, 1
    setmaxnreg.inc.sync.aligned.u32 232;
    setmaxnreg.dec.sync.aligned.u32 24;
    setmaxnreg.dec.sync.aligned.u32 24;
    mov.b32 %r7, 512;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5+8], %r7;
"""
    assert threads(ptx) == 512
    assert register_requests(ptx) == ["dec24 x2", "inc232"]
    assert allocated_columns(ptx) == 512
    assert allocated_columns("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 256;") == 256


def test_columns_that_are_no_constant_are_an_error():
    with pytest.raises(ValueError, match="%r9"):
        allocated_columns("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], %r9;")
