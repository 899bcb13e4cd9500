"""Operations on whole histories.

- ``replay``           refolds a history and compares it with the recorded ratings
- ``counterfactual``   ratings under other rules
- ``corrections``      pending rating events, and corrections after a match was voided
- ``lineage``          ancestors of an adapter and the matches that it was trained on
- ``branch``           leagues that begin as a copy of another; ``compare`` compares two runs
- ``registry_import``  conversion of another program's registry into events; ``registry_formats`` reads its forms
"""
