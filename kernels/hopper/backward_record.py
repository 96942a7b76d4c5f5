"""The fields of a tile record by name, for device code; `kernels.hopper.backward_schedule` says what each holds."""

import triton.language as tl

from kernels.hopper import backward_schedule as schedule

FIELDS = tl.constexpr(schedule.FIELDS)
Q_START = tl.constexpr(schedule.Q_START)
Q_LEN = tl.constexpr(schedule.Q_LEN)
OUT_START = tl.constexpr(schedule.OUT_START)
K_START = tl.constexpr(schedule.K_START)
K_LEN = tl.constexpr(schedule.K_LEN)
K_ROW = tl.constexpr(schedule.K_ROW)
STEPS = tl.constexpr(schedule.STEPS)
CUT_END = tl.constexpr(schedule.CUT_END)
CUT_FROM = tl.constexpr(schedule.CUT_FROM)
BLOCK = tl.constexpr(schedule.BLOCK)
PARTIALS = tl.constexpr(schedule.PARTIALS)
FIRST_FROM = tl.constexpr(schedule.FIRST_FROM)
LASTS = tl.constexpr(schedule.LASTS)
HEAD = tl.constexpr(schedule.HEAD)
ROW_BLOCK = tl.constexpr(schedule.ROW_BLOCK)
ACC_BLOCK = tl.constexpr(schedule.ACC_BLOCK)
ACC_GROUP = tl.constexpr(schedule.ACC_GROUP)
AFTER_ITSELF = tl.constexpr(schedule.AFTER_ITSELF)
STORES = tl.constexpr(schedule.STORES)
CAST_FROM = tl.constexpr(schedule.CAST_FROM)
CASTS = tl.constexpr(schedule.CASTS)
TOUCHED = tl.constexpr(schedule.TOUCHED)
WANTED = tl.constexpr(schedule.WANTED)
COUNTER = tl.constexpr(schedule.COUNTER)
ROLE = tl.constexpr(schedule.ROLE)
BACK = tl.constexpr(schedule.BACK)
HOLDS = tl.constexpr(schedule.HOLDS)
