"""The watermark: pure functions over plain values. No I/O, no clock, no state but what is passed in.

`histogram` says what was published, `readings` what is outstanding, `estimator` what can be trusted.
"""
