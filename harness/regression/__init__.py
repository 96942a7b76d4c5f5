"""What is made of more than one run: the gate, its noise floor and baseline, comparisons, and the history.

    runs -> estimates -> noise -> verdicts -> gate -> gate_output
                      -> comparison -> forest
"""
