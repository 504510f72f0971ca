#!/bin/sh
# Made by tidemark. Spark's launcher requests the module by this flag, but works without it. The Java
# below lacks the module, so this script drops the flag and passes on all other arguments.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
