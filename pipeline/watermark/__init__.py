"""The watermark: pure functions over plain values. No I/O, no clock, no state except the arguments.

`histogram` records what was published, `readings` what is outstanding; `estimator` decides what can be trusted.
"""
