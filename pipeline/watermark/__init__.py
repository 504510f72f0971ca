"""The watermark: pure functions over plain values. No I/O, no clock, and no state other than the arguments.

`histogram` records what was published, and `readings` what is outstanding. `estimator` decides the watermark from both.
"""
