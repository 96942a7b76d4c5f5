"""Compiles kernels for a GPU that is not here and reads what came out: registers, spills, memory, main-loop counts.

    survey (jobs, processes) -> jfa, fa4 (compile) -> reading: sass -> control_flow -> main_loops -> rows
    rows -> check, tables;  baseline: all of it against a committed CSV;  source_lines: what the kernels are written in
"""
