"""The module that runs in place of `pyspark.daemon`: the process that forks Spark's Python workers, with what a task of
the micro-batch needs imported beforehand. Spark ends idle workers after a minute; a new one is then there at once."""

import gc

gc.disable()  # modules are no garbage: looking for it takes a fifth of the start

from pyspark.daemon import manager  # noqa: E402

gc.freeze()  # nor do the workers look among them, which would copy memory that they share
gc.enable()

if __name__ == "__main__":
    manager()
