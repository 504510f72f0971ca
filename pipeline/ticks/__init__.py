"""One tick of each subscription, as a function of what it needs: subscription, lake, clock, policy.

The order is the guarantee: pull, persist, acknowledge; and only then read, fold, decide.
"""
