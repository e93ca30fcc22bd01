"""Other packages' functions under their own names, computed by tessera: one module per package.

A program written for such a package runs with its import line changed. Names, signatures, defaults and constants are
that package's; where results differ, the docstring says so and why.
"""
