"""Registry of tree priors and leaf families by name, for code that reads or writes names.

A class registers itself when it is defined, in any module of `bdtppl.models`: a subclass of
`bdtppl.models.prior_kinds.RegisteredPrior` or of `bdtppl.models.leaf.Leaf`.
"""

from dataclasses import MISSING, fields
from importlib import import_module
from pkgutil import iter_modules

import bdtppl.models
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import LEAF_FAMILIES
from bdtppl.models.prior_kinds import TREE_PRIORS

__all__ = ["LEAF_FAMILIES", "TREE_PRIORS", "writable_priors"]

for _module in iter_modules(bdtppl.models.__path__, "bdtppl.models."):
    if _module.name != __name__:
        import_module(_module.name)


def writable_priors() -> dict[str, type]:
    """Return priors, by name, that numbers, words and names of trees can describe.

    Examples
    --------
    >>> "DepthDecay" in writable_priors(), "Program" in writable_priors()
    (True, False)
    """
    return {
        name: prior
        for name, prior in sorted(TREE_PRIORS.items())
        if hasattr(prior, "__dataclass_fields__")
        and all(
            (field.default, field.default_factory) != (MISSING, MISSING) or field.type is Tree
            for field in fields(prior)
        )
    }
