"""The run-time type checker behind the shape types: beartype, with int accepted where float is asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
