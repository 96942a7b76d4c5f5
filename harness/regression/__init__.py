"""What is made of more than one run: the gate, its noise floor and baseline, comparisons, and the history.

    runs -> estimates -> measures -> noise (verdicts) -> gate -> gate_output, junit
                                  -> comparison -> comparison_output, forest
"""
